"""PNG and SVG figures; imports matplotlib."""
