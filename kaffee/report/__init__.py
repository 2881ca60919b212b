"""Figures and reports: one self-contained HTML file per result."""
