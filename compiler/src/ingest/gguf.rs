//! GGUF v2 and v3.
