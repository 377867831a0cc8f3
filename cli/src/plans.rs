//! The plans that are stored in a bundle.

use estream_runtime::reader::{BundleReader, ReadError};
use estream_runtime::{Choice, RunError};
use estream_schemas::digest::Digest;
use estream_schemas::plan::Plan;
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::failure::Failure;
use crate::tables;

/// Names an error lists.
const SHOWN: usize = 10;

/// A plan of a bundle, as far as it can be read.
#[derive(Debug, Serialize)]
pub(crate) struct StoredPlan {
    /// What `--plan` calls it.
    pub(crate) name: String,
    /// The bundle it was made for.
    pub(crate) made_for: Option<Digest>,
    /// It is the one it is stored in.
    pub(crate) is_for_this: bool,
    /// Longest prompt of each row.
    pub(crate) max_tokens: Vec<u64>,
    /// Why it cannot be followed, if so.
    pub(crate) problem: Option<String>,
}

/// Those of `reader`'s bundle.
pub(crate) fn stored(reader: &BundleReader) -> Result<Vec<StoredPlan>, Failure> {
    let names = reader.plans()?;
    Ok(names.into_iter().map(|name| look(reader, name)).collect())
}

fn look(reader: &BundleReader, name: String) -> StoredPlan {
    let text = reader.plan(&name).ok();
    let plan = text.and_then(|(_, text)| serde_json::from_slice::<Plan<IgnoredAny>>(&text).ok());
    let choice = Choice {
        plan: Some(name.clone()),
        ..Choice::default()
    };
    let problem = choice.resolve(reader).err();
    let made_for = plan.as_ref().map(|plan| plan.bundle);
    StoredPlan {
        name,
        made_for,
        is_for_this: made_for == Some(reader.identity()),
        max_tokens: plan.map_or(Vec::new(), |plan| {
            plan.rows.iter().map(|row| row.max_tokens).collect()
        }),
        problem: problem.map(|problem| problem.to_string()),
    }
}

/// All of them for people; nothing if there are none.
pub(crate) fn table(plans: &[StoredPlan]) -> String {
    if plans.is_empty() {
        return String::new();
    }
    let mut rows = tables::left_table(&["plan", "prompts up to", "made for", "can be followed"]);
    for plan in plans {
        let lengths: Vec<String> = plan.max_tokens.iter().map(u64::to_string).collect();
        rows.add_row([
            plan.name.clone(),
            lengths.join(", "),
            match (plan.is_for_this, plan.made_for) {
                (true, _) => "this one".to_owned(),
                (false, Some(other)) => other.to_string(),
                (false, None) => "-".to_owned(),
            },
            match &plan.problem {
                None => "yes".to_owned(),
                Some(problem) => format!("no: {problem}"),
            },
        ]);
    }
    format!("{rows}\n")
}

/// What is wrong with plan `name`; if there is none, which there are.
pub(crate) fn unknown(reader: &BundleReader, name: &str, error: RunError) -> Failure {
    let RunError::Read(ReadError::NotFound { .. }) = &error else {
        return error.into();
    };
    let Ok(mut names) = reader.plans() else {
        return error.into();
    };
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let there_are = match (names.len(), more) {
        (0, _) => "it has none; store one with estream plan --store".to_owned(),
        (_, 0) => format!("it has {}", names.join(", ")),
        (_, more) => format!("it has {} and {more} more", names.join(", ")),
    };
    let bundle = reader.path().display();
    let what = format!("{bundle}: the bundle has no plan {name:?}; {there_are}");
    Failure::new(error.exit(), anyhow::Error::msg(what))
}
