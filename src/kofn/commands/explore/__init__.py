"""`kofn explore`: one HTML page that shows the equation Σ F((x − θ)/T) = k."""
