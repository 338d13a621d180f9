"""The report page of a comparison: data in, one HTML file out."""
