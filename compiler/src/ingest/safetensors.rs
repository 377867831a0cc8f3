//! Safetensors directories.
