//! Experts of all kinds.

use estream_hexagon::{ExpertShape, Stored};
use estream_schemas::layout::Layout;
use proptest::prelude::*;

/// Any layout that kernels decode.
fn stored() -> impl Strategy<Value = Layout> {
    let known: Vec<Layout> = Stored::known().map(Stored::layout).collect();
    prop::sample::select(known)
}

/// An expert, from a few columns to more than any VTCM holds.
pub(crate) fn shape() -> impl Strategy<Value = ExpertShape> {
    let width = prop_oneof![1..200u64, 1..5000u64, 1..20_000u64];
    // Many experts can be cut, so that their widths are whole tiles.
    let whole = prop_oneof![(1..40u64, Just(32)), (1..80u64, Just(256))];
    let whole = whole.prop_map(|(count, columns)| count * columns);
    let ff = prop_oneof![width.clone(), whole];
    let layouts = [stored(), stored(), stored()];
    (width, ff, layouts).prop_map(|(hidden, ff, layouts)| {
        ExpertShape::new(hidden, ff, 1, layouts).expect("an expert that can be")
    })
}

/// VTCM, of no even size.
pub(crate) fn vtcm() -> impl Strategy<Value = u64> {
    prop_oneof![1..1u64 << 20, 1..9u64 << 20, 1..18u64 << 20]
}
