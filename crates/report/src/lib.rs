//! Histograms, goodput, tables and JSON; the same live and simulated.
