"""Gradient-boosted trees and random forests, through treelite."""
