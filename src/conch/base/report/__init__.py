"""The kit of all HTML reports: page, tables and charts in SVG, without scripts and network, in light and dark."""
