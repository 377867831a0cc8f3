//! A template's constants as a C header, for code that is compiled for one shape class.

use std::fmt::Write;

use crate::abi::{self, LayoutCode};
use crate::vtcm::BANK_BYTES;
use crate::wire::{Described, Wire};
use crate::{Arch, Region, Stored, Template};

/// What the header of a template for `arch` is called.
pub fn file_name(template: &Template, arch: Arch) -> String {
    format!("experts-{}-{arch}.h", template.shape())
}

/// The text of that header. It includes `abi.h`, which has the types.
pub fn header(template: &Template, arch: Arch) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, template, arch);
    text
}

fn write(out: &mut String, template: &Template, arch: Arch) -> std::fmt::Result {
    let shape = template.shape();
    let stored = shape.stored();
    let (hidden, ff) = (shape.hidden(), shape.ff());
    let [gate, up, down] = stored.map(layout_name);
    let names = stored.map(|stored| stored.layout().to_string());
    let names = match names.iter().all(|name| *name == names[0]) {
        true => names[0].clone(),
        false => names.join(", "),
    };
    let (version, vtcm_bytes) = (arch.name().trim_start_matches('v'), template.vtcm_bytes());
    let used_bytes = template.used_bytes();
    writeln!(
        out,
        "/* Constants of the expert kernel for one shape class. Written by `estream kernels`; not to be edited.
 *
 *     hidden {hidden}, ff {ff}; gate, up and down in {names}
 *     Hexagon {arch}, {vtcm_bytes} bytes of VTCM that begin with a bank, of which {used_bytes} are used:
 *"
    )?;
    for Region {
        buffer,
        offset,
        bytes,
    } in in_order(template)
    {
        writeln!(out, " *     {offset:>8}  {buffer}, {bytes} bytes")?;
    }
    let dma = arch.dma();
    let [linear_bytes, rows, row_bytes, stride_bytes] =
        [dma.linear_bytes, dma.rows, dma.row_bytes, dma.stride_bytes];
    let [gate_bytes, up_bytes, down_bytes] = stored.map(Stored::vtcm_tile_bytes);
    writeln!(
        out,
        " */
#ifdef ESTREAM_TEMPLATE_H
#error \"a translation unit has one template\"
#endif
#define ESTREAM_TEMPLATE_H

#if defined(__HEXAGON_ARCH__) && __HEXAGON_ARCH__ != {version}
#error \"this template is for {arch}\"
#endif

#include \"abi.h\"

/* An expert record. */
#define ESTREAM_TEMPLATE_HIDDEN {hidden}u
#define ESTREAM_TEMPLATE_FF {ff}u
#define ESTREAM_TEMPLATE_GATE {gate}
#define ESTREAM_TEMPLATE_UP {up}
#define ESTREAM_TEMPLATE_DOWN {down}

/* Bytes from tile to tile of a strip in VTCM. */
#define ESTREAM_TEMPLATE_GATE_TILE_BYTES {gate_bytes}u
#define ESTREAM_TEMPLATE_UP_TILE_BYTES {up_bytes}u
#define ESTREAM_TEMPLATE_DOWN_TILE_BYTES {down_bytes}u

/* Bytes of a bank of VTCM, which no range of operand tiles leaves. */
#define ESTREAM_TEMPLATE_BANK_BYTES {BANK_BYTES}u

/* What one descriptor of the DMA engine moves at most. */
#define ESTREAM_DMA_MAX_BYTES {linear_bytes}u
#define ESTREAM_DMA_MAX_ROWS {rows}u
#define ESTREAM_DMA_MAX_ROW_BYTES {row_bytes}u
#define ESTREAM_DMA_MAX_STRIDE {stride_bytes}u

static const struct estream_plan estream_template_plan = {{"
    )?;
    let plan = template.plan();
    let words = plan.to_bytes();
    let words = words.chunks_exact(4);
    let words: Vec<u32> = words.filter_map(|mut word| u32::take(&mut word)).collect();
    // The last one is 0, as what is left out is.
    let fields = abi::Plan::fields();
    let ends = fields.iter().skip(1).map(|(_, at)| at / 4);
    for ((field, at), end) in fields.iter().zip(ends) {
        let values: Vec<String> = words[at / 4..end]
            .iter()
            .map(|word| format!("{word}u"))
            .collect();
        match values.as_slice() {
            [one] => writeln!(out, "    .{field} = {one},")?,
            several => writeln!(out, "    .{field} = {{{}}},", several.join(", "))?,
        }
    }
    writeln!(out, "}};")
}

/// Regions from the lowest on.
fn in_order(template: &Template) -> Vec<Region> {
    let mut regions = template.regions().to_vec();
    regions.sort_unstable_by_key(|region| region.offset);
    regions
}

/// What `enum estream_layout` calls it.
fn layout_name(stored: Stored) -> &'static str {
    let mut all = LayoutCode::ALL.iter();
    let known = all.find(|(code, _)| *code == stored.code());
    known.map_or("", |(_, name)| name)
}
