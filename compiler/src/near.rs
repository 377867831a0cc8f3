//! Names that are nearly right: what a tensor's name, or one that is missing, may have been meant as.
//!
//! Names are compared part by part, as dots divide them, and all numbers are alike.

/// Names longer than this are near nothing, so that a hostile one costs nothing.
const MAX_NAME_BYTES: usize = 128;
/// Candidates that a name is compared with, and names of one checkpoint that are compared.
pub(crate) const MAX_CANDIDATES: usize = 256;
/// What a part that only one of two names has counts.
const PART: usize = 1000;
/// What numbers are called, by their place in a name; the last stands for any further ones.
const NUMBERS: [&str; 3] = ["{layer}", "{expert}", "{n}"];

/// What the number at `place` of a name is called.
pub(crate) fn number(place: usize) -> &'static str {
    NUMBERS[place.min(NUMBERS.len() - 1)]
}

/// Whether a part of a name is a number in its only spelling, and which.
pub(crate) fn as_number(part: &str) -> Option<u64> {
    let number: u64 = part.parse().ok()?;
    (number.to_string() == part).then_some(number)
}

/// `name` with words for its numbers: `a.3.b` is `a.{layer}.b`.
pub(crate) fn pattern(name: &str) -> String {
    let mut numbers = 0;
    let mut parts: Vec<&str> = name.split('.').collect();
    for part in &mut parts {
        if as_number(part).is_some() {
            *part = number(numbers);
            numbers += 1;
        }
    }
    parts.join(".")
}

/// Of `candidates`, which are patterns, those that are nearest to one of the patterns
/// `names`: more than one if they are equally near, none if none is near enough to be meant.
pub(crate) fn nearest<'a>(
    names: &[&str],
    candidates: impl IntoIterator<Item = &'a str>,
) -> Vec<&'a str> {
    let mut least = usize::MAX;
    let mut nearest: Vec<&str> = Vec::new();
    for candidate in candidates.into_iter().take(MAX_CANDIDATES) {
        let distances = names.iter().filter_map(|name| near(name, candidate));
        let Some(distance) = distances.min().filter(|distance| *distance <= least) else {
            continue;
        };
        if distance < least {
            nearest.clear();
        }
        least = distance;
        if !nearest.contains(&candidate) {
            nearest.push(candidate);
        }
    }
    nearest
}

/// How far `a` and `b` are apart, if that is at most one part, and a third of them. What a
/// tensor is comes last in its name, so there they must have a third in common.
fn near(a: &str, b: &str) -> Option<usize> {
    if a.len().max(b.len()) > MAX_NAME_BYTES {
        return None;
    }
    let (a, b): (Vec<&str>, Vec<&str>) = (a.split('.').collect(), b.split('.').collect());
    if a.len().abs_diff(b.len()) > 1 {
        return None;
    }
    if 3 * part_distance(&last(&a), &last(&b)) > 2 * PART {
        return None;
    }
    let distance = distance(&a, &b, part_distance);
    let most = PART.min(PART * a.len().max(b.len()) / 3);
    (distance <= most).then_some(distance)
}

/// The part of a name that says what the tensor is.
fn last<'a>(parts: &[&'a str]) -> &'a str {
    match parts {
        [.., last, "weight"] | [.., last] => last,
        [] => "",
    }
}

/// How far two parts are apart: 0 to [`PART`], which is nothing in common.
fn part_distance(a: &&str, b: &&str) -> usize {
    let is_number = |part: &str| part.starts_with('{') && part.ends_with('}');
    match (is_number(a), is_number(b)) {
        (true, true) => 0,
        (false, false) => {
            let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            let changed = distance(&a, &b, |a, b| if a == b { 0 } else { PART });
            changed / a.len().max(b.len()).max(1)
        }
        _ => PART,
    }
}

/// The edit distance of two sequences (Wagner and Fischer): an element more or less
/// counts [`PART`], another one what `substitute` says.
fn distance<T>(a: &[T], b: &[T], substitute: impl Fn(&T, &T) -> usize) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).map(|count| count * PART).collect();
    for (count, x) in (1..).zip(a) {
        let mut diagonal = std::mem::replace(&mut row[0], count * PART);
        for (at, y) in b.iter().enumerate() {
            let replaced = diagonal + substitute(x, y);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + PART).min(row[at] + PART);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{nearest, pattern};

    #[test]
    fn numbers_have_words_by_their_place() {
        assert_eq!(
            pattern("a.0.b.17.c.2.d.3"),
            "a.{layer}.b.{expert}.c.{n}.d.{n}"
        );
        for odd in ["w1", "a.01.b", "a.-1.b", "a.99999999999999999999.b"] {
            assert_eq!(pattern(odd), odd);
        }
    }

    #[test]
    fn a_name_is_near_what_differs_in_few_parts() {
        let known = [
            "model.layers.{layer}.self_attn.q_proj.weight",
            "model.layers.{layer}.mlp.gate.weight",
            "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
            "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
            "model.norm.weight",
            "token_embd.weight",
        ];
        for (name, expected) in [
            ("model.layers.0.self_attn.q_porj.weight", &[0][..]),
            ("model.layers.0.self_attn.q_proj.bias", &[]),
            ("language_model.model.layers.3.mlp.gate.weight", &[1]),
            ("model.layers.1.block_sparse_moe.gate.weight", &[1]),
            ("norm.weight", &[4]),
            ("token_embed.weight", &[5]),
            ("vision_tower.blocks.0.conv", &[]),
            ("q", &[]),
            ("", &[]),
        ] {
            let expected: Vec<&str> = expected.iter().map(|at| known[*at]).collect();
            assert_eq!(nearest(&[&pattern(name)], known), expected, "{name}");
        }
    }

    #[test]
    fn names_that_are_equally_near_are_all_told() {
        assert_eq!(
            nearest(&["a.b3"], ["a.b1", "a.c", "a.b2"]),
            ["a.b1", "a.b2"]
        );
        assert_eq!(nearest(&["a.b3", "a.b1"], ["a.b1", "a.b2"]), ["a.b1"]);
    }

    #[test]
    fn a_name_without_end_is_near_nothing() {
        let long = "a.".repeat(1 << 20);
        assert_eq!(nearest(&[&long], [long.as_str(), "a"]), [""; 0]);
    }
}
