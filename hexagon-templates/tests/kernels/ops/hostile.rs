//! Descriptors that lie: each is refused for what is wrong with it, and nothing is written.
