//! Everything that is wrong, told at once.

use std::collections::BTreeSet;

/// A configuration can claim any number of experts; nobody reads more lines than this.
const MAX_PROBLEMS: usize = 4096;

/// A list of problems, each of them once.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<String>,
    seen: BTreeSet<String>,
    omitted_count: usize,
}

impl Problems {
    pub(crate) fn push(&mut self, problem: impl Into<String>) {
        let problem = problem.into();
        if self.list.len() == MAX_PROBLEMS {
            self.omitted_count += 1;
        } else if self.seen.insert(problem.clone()) {
            self.list.push(problem);
        }
    }

    /// The value, or `otherwise` and one problem more.
    pub(crate) fn or<T, E: ToString>(&mut self, value: Result<T, E>, otherwise: T) -> T {
        value.unwrap_or_else(|problem| {
            self.push(problem.to_string());
            otherwise
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn into_list(mut self) -> Vec<String> {
        if self.omitted_count > 0 {
            self.list.push(format!("and {} more", self.omitted_count));
        }
        self.list
    }
}

impl<T: Into<String>> Extend<T> for Problems {
    fn extend<I: IntoIterator<Item = T>>(&mut self, problems: I) {
        problems.into_iter().for_each(|problem| self.push(problem));
    }
}

/// A count and one line each, for an error message; of many, the first ones.
pub(crate) fn problem_list(problems: &[String]) -> String {
    const MAX_SHOWN: usize = 40;
    let things = match problems.len() {
        1 => "one thing is wrong",
        count => &format!("{count} things are wrong"),
    };
    let shown = problems.iter().take(MAX_SHOWN);
    let list = shown.fold(things.to_owned(), |list, problem| list + "\n  - " + problem);
    match problems.len().saturating_sub(MAX_SHOWN) {
        0 => list,
        more => format!("{list}\n  … and {more} more"),
    }
}
