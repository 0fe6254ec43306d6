"""``python -m bgn`` prints what is installed and which backend is at work."""

from bgn import info

if __name__ == "__main__":
    print(info())
