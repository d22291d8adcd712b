//! The gate under every interleaving of a few threads.
