"""Class folders: listing, layouts, scanning, decoding."""
