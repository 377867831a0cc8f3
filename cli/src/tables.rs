//! Tables for people.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use estream_packer::report::Sizes;

/// An empty table with these headings; all columns are words.
pub(crate) fn left_table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headings.to_vec());
    table
}

/// An empty table with these headings; all columns but the first are numbers.
pub(crate) fn table(headings: &[&str]) -> Table {
    let mut table = left_table(headings);
    for column in 1..headings.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// `bytes` with thousands separated.
pub(crate) fn grouped(bytes: u64) -> String {
    let digits = bytes.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Types by role, record classes and totals.
pub(crate) fn sizes(sizes: &Sizes) -> String {
    let mut roles = table(&[
        "role",
        "layout",
        "tensors",
        "elements",
        "bytes",
        "bits/weight",
    ]);
    for row in &sizes.roles {
        roles.add_row([
            row.role.clone(),
            row.layout.to_string(),
            grouped(row.tensor_count),
            grouped(row.elements),
            grouped(row.payload_bytes),
            format!("{:.3}", row.bits_per_weight()),
        ]);
    }
    let mut records = table(&[
        "layers",
        "experts",
        "shards",
        "hidden",
        "ff",
        "gate, up, down",
        "record bytes",
    ]);
    for class in &sizes.records {
        let mut layouts: Vec<String> = class.layouts.iter().map(ToString::to_string).collect();
        layouts.dedup();
        records.add_row([
            ranges(&class.layers),
            class.experts.to_string(),
            class.shards.to_string(),
            class.hidden.to_string(),
            class.ff.to_string(),
            layouts.join(", "),
            grouped(class.record_bytes),
        ]);
    }
    let mut totals = table(&["total", "bytes"]);
    for (what, bytes) in [
        ("resident payload", sizes.resident_payload_bytes),
        ("resident.bin", sizes.resident_file_bytes),
        ("expert payload", sizes.expert_payload_bytes),
        ("experts files", sizes.expert_file_bytes),
        ("slot (largest record)", sizes.slot_bytes),
    ] {
        totals.add_row([what.to_owned(), grouped(bytes)]);
    }
    format!("{roles}\n{records}\n{totals}\n")
}

/// Layers as ranges: `0-15, 17`.
pub(crate) fn ranges(layers: &[u64]) -> String {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for &layer in layers {
        match out.last_mut() {
            Some((_, last)) if *last + 1 == layer => *last = layer,
            _ => out.push((layer, layer)),
        }
    }
    let text = out.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_layers_read_easily() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
    }
}
