//! Block codecs: floats to blocks of the quantised types and back.
