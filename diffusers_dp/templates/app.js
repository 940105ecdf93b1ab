// What the page does in the browser beside Gradio.
() => {
  // Gradio's lists answer Tab by opening again after the focus has left them.
  window.addEventListener("keydown", (event) => {
    if (event.key === "Tab" && event.target.matches?.("[role=combobox]")) event.stopImmediatePropagation();
  }, true);
}
