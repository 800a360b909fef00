"""Which source of better answers wins without training: four ways, at equal temperature and length."""
