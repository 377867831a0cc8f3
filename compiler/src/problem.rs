//! Everything that is wrong, told at once.
//!
//! A problem that many tensors have is one line: problems are the same but for numbers
//! if they differ in nothing but the numbers in the names they quote.

use std::collections::{BTreeMap, BTreeSet};

use crate::near;

/// A configuration can claim any number of experts; nobody reads more lines than this,
const MAX_LINES: usize = 4096;
/// and no more problems than this are told apart.
const MAX_PROBLEMS: usize = 1 << 18;
/// As many problems that are the same but for numbers have a line each.
const MAX_ALIKE: usize = 2;
/// Characters of a problem that are shown: files, and names in them, can be long.
const MAX_CHARS: usize = 1000;
/// Runs of numbers that a line spells out.
const MAX_RUNS: usize = 8;

/// A list of problems, each of them once.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    kinds: Vec<Kind>,
    by_text: BTreeMap<Vec<String>, usize>,
    count: usize,
    omitted_count: usize,
}

/// Problems that are the same but for numbers.
#[derive(Debug)]
struct Kind {
    /// What stands before, between and after the numbers.
    text: Vec<String>,
    numbers: BTreeSet<Vec<u64>>,
    hint: Option<String>,
}

impl Problems {
    pub(crate) fn push(&mut self, problem: impl Into<String>) {
        self.add(&problem.into());
    }

    /// Adds a problem, and says which kind it is of, if there is room for it.
    pub(crate) fn add(&mut self, problem: &str) -> Option<usize> {
        let (text, numbers) = split(problem);
        let kind = self.by_text.get(&text).copied();
        let is_full = kind.is_none() && self.kinds.len() == MAX_LINES;
        if is_full || self.count == MAX_PROBLEMS {
            self.omitted_count += 1;
            return None;
        }
        let kind = kind.unwrap_or_else(|| {
            self.by_text.insert(text.clone(), self.kinds.len());
            self.kinds.push(Kind {
                text,
                numbers: BTreeSet::new(),
                hint: None,
            });
            self.kinds.len() - 1
        });
        self.count += usize::from(self.kinds[kind].numbers.insert(numbers));
        Some(kind)
    }

    /// Says with every problem of a kind what may have been meant.
    pub(crate) fn hint(&mut self, kind: usize, hint: String) {
        self.kinds[kind].hint = Some(hint);
    }

    /// The value, or `otherwise` and one problem more.
    pub(crate) fn or<T, E: ToString>(&mut self, value: Result<T, E>, otherwise: T) -> T {
        value.unwrap_or_else(|problem| {
            self.push(problem.to_string());
            otherwise
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// One line each, or one line for many that are the same but for numbers.
    pub(crate) fn into_list(self) -> Vec<String> {
        let mut list: Vec<String> = self.kinds.iter().flat_map(Kind::lines).collect();
        if self.omitted_count > 0 {
            list.push(format!("and {} more", self.omitted_count));
        }
        list
    }
}

impl Kind {
    fn lines(&self) -> Vec<String> {
        let hint = self.hint.as_ref().map(|hint| format!("; {hint}"));
        let hint = hint.unwrap_or_default();
        if self.numbers.len() > MAX_ALIKE {
            let (pattern, count) = (self.pattern(), self.numbers.len());
            return vec![format!("{pattern} × {count} ({}){hint}", self.ranges())];
        }
        let spelled = self.numbers.iter().map(|numbers| {
            let numbers = numbers.iter().map(u64::to_string);
            join(&self.text, numbers) + &hint
        });
        spelled.collect()
    }

    /// The text with a word for each number.
    fn pattern(&self) -> String {
        let mut place = 0;
        let words = self.text[1..].iter().zip(&self.text).map(|(_, before)| {
            // The numbers of each name are counted on their own.
            place = if before.contains('"') { 0 } else { place + 1 };
            near::number(place).to_owned()
        });
        join(&self.text, words)
    }

    /// Which numbers the first name has: `layers 0-2, 5; experts 0-7`.
    fn ranges(&self) -> String {
        let of_first = self.text[1..].iter().position(|text| text.contains('"'));
        let ranges = (0..of_first.map_or(0, |last| last + 1)).map(|place| {
            let numbers = self.numbers.iter().map(|numbers| numbers[place]).collect();
            let word = near::number(place).trim_matches(['{', '}']);
            format!("{word}s {}", runs(&numbers))
        });
        ranges.collect::<Vec<_>>().join("; ")
    }
}

impl<T: Into<String>> Extend<T> for Problems {
    fn extend<I: IntoIterator<Item = T>>(&mut self, problems: I) {
        problems.into_iter().for_each(|problem| self.push(problem));
    }
}

/// `text`, and what stands between one piece of it and the next.
fn join(text: &[String], between: impl Iterator<Item = String>) -> String {
    let rest = between.zip(&text[1..]);
    rest.fold(text[0].clone(), |text, (word, piece)| text + &word + piece)
}

/// A line as its text before, between and after the numbers of the names that it quotes.
fn split(line: &str) -> (Vec<String>, Vec<u64>) {
    let (mut text, mut numbers) = (vec![String::new()], Vec::new());
    let mut piece = String::new();
    let mut rest = line;
    while let Some((before, name, after)) = quoted(rest) {
        piece += before;
        for (index, part) in name.split('.').enumerate() {
            if index > 0 {
                piece.push('.');
            }
            match near::as_number(part).filter(|_| name.contains('.')) {
                None => piece += part,
                Some(number) => {
                    numbers.push(number);
                    text.pop();
                    text.extend([std::mem::take(&mut piece), String::new()]);
                }
            }
        }
        piece.push('"');
        rest = after;
    }
    text.pop();
    text.push(piece + rest);
    (text, numbers)
}

/// Text up to and with a quote, what is quoted, and the text after the closing quote.
fn quoted(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.find('"')? + 1;
    let mut escaped = false;
    let end = text[start..].find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    let (before, from) = text.split_at(start);
    Some((before, &from[..end], &from[end + 1..]))
}

/// Numbers as runs: `0-15, 17`.
fn runs(numbers: &BTreeSet<u64>) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let spelled = runs.iter().take(MAX_RUNS).map(|run| match run {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    });
    let mut spelled: Vec<String> = spelled.collect();
    if runs.len() > MAX_RUNS {
        spelled.push("…".to_owned());
    }
    spelled.join(", ")
}

/// A count and one line each, for an error message; of many, the first ones.
pub(crate) fn problem_list(problems: &[String]) -> String {
    const MAX_SHOWN: usize = 40;
    let things = match problems.len() {
        1 => "one thing is wrong",
        count => &format!("{count} things are wrong"),
    };
    let shown = problems.iter().take(MAX_SHOWN);
    let list = shown.fold(things.to_owned(), |list, problem| {
        list + "\n  - " + &cut(problem, MAX_CHARS)
    });
    match problems.len().saturating_sub(MAX_SHOWN) {
        0 => list,
        more => format!("{list}\n  … and {more} more"),
    }
}

/// The first `max` characters of `text`, and a sign that there are more.
pub(crate) fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_problem_is_cut_between_characters() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöü", 2), "äö…");
        let list = problem_list(&["é".repeat(1 << 20)]);
        assert!(list.chars().count() < MAX_CHARS + 40, "{}", list.len());
    }

    fn list(problems: &[String]) -> Vec<String> {
        let mut all = Problems::default();
        all.extend(problems.iter().map(String::as_str));
        all.into_list()
    }

    #[test]
    fn many_of_a_kind_are_one_line_and_few_are_not() {
        let missing = |layer: u64, expert: u64| {
            format!("missing: \"layers.{layer}.experts.{expert}.w1\" or \"l.{layer}.e\" (gate)")
        };
        let few: Vec<String> = [10, 2].map(|expert| missing(3, expert)).into();
        assert_eq!(list(&few), [missing(3, 2), missing(3, 10)]);
        let many = (0..3).flat_map(|layer| [0, 1, 2, 7].map(|expert| missing(layer, expert)));
        assert_eq!(
            list(&many.collect::<Vec<_>>()),
            [
                "missing: \"layers.{layer}.experts.{expert}.w1\" or \"l.{layer}.e\" (gate) × 12 \
                 (layers 0-2; experts 0-2, 7)"
            ]
        );
    }

    #[test]
    fn only_numbers_in_names_make_problems_alike() {
        for lines in [
            (0..9).map(|n| format!("\"router\" is [{n}, 64]")).collect(),
            (0..9).map(|n| format!("\"w{n}.a\" is odd")).collect(),
            (0..9).map(|n| format!("key \"{n}\" is odd")).collect(),
            (0..9)
                .map(|n| format!("no \"a\" in layers.{n}.b"))
                .collect(),
            vec!["\"a.01.b\"".to_owned(), "\"a.1.b\"".to_owned()],
            vec!["an \"open.1".to_owned(), "an \"open.2".to_owned()],
            vec!["\"a\\\".1.b\"".to_owned(); 1],
        ] {
            assert_eq!(list(&lines), lines);
        }
    }

    #[test]
    fn a_problem_is_told_once_and_a_flood_is_counted() {
        assert_eq!(list(&vec!["\"a.1\" is odd".to_owned(); 9]).len(), 1);
        let flood: Vec<String> = (0..MAX_LINES + 5).map(|n| format!("odd {n}")).collect();
        let told = list(&flood);
        assert_eq!(told.len(), MAX_LINES + 1);
        assert_eq!(told[MAX_LINES], "and 5 more");
    }

    #[test]
    fn a_hint_is_with_every_problem_of_its_kind() {
        let mut all = Problems::default();
        let kind = all.add("\"a.1\" is odd").unwrap();
        all.push("\"a.2\" is odd");
        all.hint(kind, "try b".to_owned());
        assert_eq!(
            all.into_list(),
            ["\"a.1\" is odd; try b", "\"a.2\" is odd; try b"]
        );
    }
}
