//! What a user should know about a checkpoint and need not act on.

use std::fmt;

use super::error::{Names, Rest};

/// An oddity of a checkpoint that is no error by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A weight file holds tensors that the index does not list. They are among
    /// the checkpoint's tensors all the same.
    Unlisted {
        /// The weight file.
        file: String,
        /// How many tensors.
        count: usize,
        /// The names of the first of them.
        tensors: Vec<String>,
    },
    /// Two weight files hold the same tensor with equal bytes; one is used.
    Repeated {
        /// The tensor.
        tensor: String,
        /// Where it is read from.
        used: String,
        /// The other file.
        unused: String,
    },
    /// A weight file lies beside the checkpoint and is no part of it.
    Unused {
        /// The file.
        file: String,
    },
    /// The source declares no licence, or not in a way that can be read.
    License {
        /// Why.
        reason: String,
    },
    /// Something that looks like a licence file is not carried along.
    NotCarried {
        /// Its name.
        file: String,
        /// Why.
        reason: &'static str,
    },
    /// The checkpoint and its family's descriptor do not quite agree.
    Surprise(String),
    /// Anything else.
    Other(String),
}

impl Notice {
    /// Whether this may mean that the weights are not what they seem, which a strict
    /// build refuses.
    pub fn is_surprising(&self) -> bool {
        matches!(
            self,
            Notice::Unlisted { .. }
                | Notice::Repeated { .. }
                | Notice::Unused { .. }
                | Notice::Surprise(_)
        )
    }
}

impl From<String> for Notice {
    fn from(text: String) -> Notice {
        Notice::Other(text)
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Unlisted {
                file,
                count,
                tensors,
            } => {
                let shown = Names(tensors);
                write!(
                    f,
                    "{file:?} holds {count} tensors that the index does not list: {shown}"
                )?;
                let listed = tensors.len();
                fmt::Display::fmt(
                    &Rest {
                        count: *count,
                        listed,
                    },
                    f,
                )
            }
            Notice::Repeated {
                tensor,
                used,
                unused,
            } => write!(
                f,
                "tensor {tensor:?} is in {used:?} and, with the same bytes, in {unused:?}"
            ),
            Notice::Unused { file } => {
                write!(f, "{file:?} is no part of the checkpoint and is not read")
            }
            Notice::License { reason } => write!(f, "licence unknown: {reason}"),
            Notice::NotCarried { file, reason } => write!(f, "{file:?} is not carried: {reason}"),
            Notice::Surprise(text) | Notice::Other(text) => f.write_str(text),
        }
    }
}
