"""Files to cases to prepared slices: volumes, dataset layouts, preparation, the phantom."""
