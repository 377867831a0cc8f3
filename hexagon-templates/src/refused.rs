//! Why there is no template.

use estream_schemas::exit::Exit;
use estream_schemas::layout::Layout;

use crate::shape::Stored;
use crate::vtcm::MAX_VTCM_BYTES;

/// Why there is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Dimensions that no expert has.
    #[error("an expert of hidden {hidden} and ff {ff} in {shards} shards cannot be: {why}")]
    Shape {
        /// Width of the model.
        hidden: u64,
        /// Feed-forward width of a record.
        ff: u64,
        /// Records of an expert.
        shards: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// No kernel decodes this.
    #[error(
        "no kernel decodes {layout} ({projection}); known are {known}: compile the bundle with a recipe \
         that stores experts in one of these",
        known = Stored::known().map(|stored| stored.layout().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Layout {
        /// Which matrix of an expert.
        projection: &'static str,
        /// How it is stored.
        layout: Layout,
    },
    /// More than any template is made for.
    #[error(
        "{vtcm_bytes} bytes of VTCM are more than the {MAX_VTCM_BYTES} that templates are made for"
    )]
    Budget {
        /// What was asked for.
        vtcm_bytes: u64,
    },
    /// Not even the rows of one tile fit.
    #[error(
        "an expert record of hidden {hidden} and ff {ff} needs {need} of VTCM for 32 rows, and there are \
         {vtcm_bytes}; {hint}",
        need = need(*needed_bytes),
        hint = hint(*needed_bytes, *shards)
    )]
    Vtcm {
        /// Width of the model.
        hidden: u64,
        /// Feed-forward width of a record.
        ff: u64,
        /// What there is.
        vtcm_bytes: u64,
        /// The least that would do; none if no VTCM that templates are made for would.
        needed_bytes: Option<u64>,
        /// The fewest records of an expert that would fit, and what they need; none if width alone is too
        /// much.
        shards: Option<(u64, u64)>,
    },
}

fn need(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => format!("{bytes} bytes"),
        None => format!("more than {MAX_VTCM_BYTES} bytes"),
    }
}

fn hint(needed_bytes: Option<u64>, shards: Option<(u64, u64)>) -> String {
    let cut = shards.map(|(shards, bytes)| {
        format!("cut experts with compile --shards {shards}, which needs {bytes}")
    });
    let more = needed_bytes.map(|bytes| format!("take an NPU with at least {bytes}"));
    let ways: Vec<String> = cut.into_iter().chain(more).collect();
    match ways.is_empty() {
        true => "no number of shards would do".to_owned(),
        false => ways.join(", or "),
    }
}

impl Refused {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            Refused::Shape { .. } => Exit::Invalid,
            Refused::Budget { .. } => Exit::Usage,
            Refused::Layout { .. } | Refused::Vtcm { .. } => Exit::CannotRun,
        }
    }
}
