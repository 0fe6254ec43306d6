"""What is done to the normalizers of a whole model: convert, fold, freeze, recalibrate, describe."""
