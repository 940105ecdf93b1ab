"""What becomes public: the folder, its receipt, its card, its way to the Hub."""
