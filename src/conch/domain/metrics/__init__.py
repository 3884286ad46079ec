"""The metrics of Conch: name, type, unit, labels and help of each, from which all else is derived."""
