"""Classification: the paper's ImageNet experiment, and yours."""
