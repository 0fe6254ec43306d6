"""Architecture search: DARTS, MANAS, and training of what they find."""
