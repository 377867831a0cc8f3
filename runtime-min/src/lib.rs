//! Opens a bundle, streams its experts and runs prefill.
