"""What methods ask the sensitive images. A file for each question; importing one loads no torch."""
