"""`kofn train router`: routers of mixtures of experts, kofn's and the usual ones, side by side."""
