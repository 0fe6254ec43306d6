"""What is done to normalizers of a whole model: convert, fold, freeze, recalibrate, describe."""
