//! Arranging rows into 32 × 32 tiles and back.
