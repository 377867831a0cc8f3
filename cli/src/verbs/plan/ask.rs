//! What is typed: budgets and triples.

use estream_runtime::parse_size;

/// Digits after the point.
const MAX_DIGITS: usize = 9;

/// A size as `run --budget` has it, or with a fraction, such as `1.5GiB`: of a fraction of a byte nothing
/// is left.
pub(super) fn budget(text: &str) -> Result<u64, String> {
    let Some((whole, rest)) = text.split_once('.') else {
        return parse_size(text);
    };
    let wrong =
        || format!("{text:?} is not a size; write it as 1.5GiB, 800MB or a number of bytes");
    let end = rest.find(|c: char| !c.is_ascii_digit());
    let (part, unit) = rest.split_at(end.unwrap_or(rest.len()));
    let unit_bytes = parse_size(&format!("1{unit}")).map_err(|_| wrong())?;
    if part.is_empty() || part.len() > MAX_DIGITS {
        return Err(wrong());
    }
    let scale = 10u128.pow(u32::try_from(part.len()).unwrap_or(0));
    let number: u128 = format!("{whole}{part}").parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(u128::from(unit_bytes));
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes / scale).ok());
    let digits = !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = bytes.filter(|bytes| *bytes > 0 && digits);
    bytes.ok_or_else(wrong)
}

/// `G,Q,B`.
pub(super) fn numbers(text: &str) -> Result<[usize; 3], String> {
    let numbers: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| "is not G,Q,B; write three numbers, such as 8,2,3".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_have_units_and_may_have_fractions() {
        for (text, bytes) in [
            ("1", 1),
            ("1.0GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.5k", 512),
            ("800MB", 800_000_000),
            ("512M", 512 << 20),
            ("2g", 2 << 30),
            ("1.23456789KB", 1234),
            ("16777215TiB", 16_777_215 << 40),
        ] {
            assert_eq!(budget(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "GiB",
            "1.",
            ".5GiB",
            "1..5G",
            "+1.5G",
            "1.5 0G",
            "1XB",
            "-1",
            "0.0001",
            "16777216TiB",
            "1.0000000000G",
            "9999999999999999999999999999999999999999",
        ] {
            assert!(budget(text).unwrap_err().contains("not a size"), "{text}");
        }
    }

    #[test]
    fn three_numbers_are_g_q_and_b() {
        assert_eq!(numbers("8,2,3"), Ok([8, 2, 3]));
        for text in ["", "8", "8,2", "8,2,3,4", "8,x,3", "8, 2,3"] {
            assert!(numbers(text).is_err(), "{text}");
        }
    }
}
