//! Real models, by hand and as the documentation has them.

use estream_hexagon::{Buffer, ExpertShape, Template};

use crate::rules::check;

#[expect(dead_code, reason = "the command has a main of its own")]
#[path = "../../examples/capacities.rs"]
mod capacities;

#[test]
fn an_expert_of_olmoe_takes_1248_rows_on_8_mib() {
    let q4_0 = "q4_0.t32.direct".parse().unwrap();
    let shape = ExpertShape::new(2048, 1024, 1, [q4_0; 3]).unwrap();
    let template = Template::new(&shape, 8 << 20).unwrap();
    // 32 rows are 64 + 32 + 4 tiles. Strips of 64 tiles, twice, stored and decoded: 344,064 bytes, and 256.
    let rows = ((8 << 20) - 2 * 64 * (640 + 2048) - 256) / (100 * 2048);
    assert_eq!((template.capacity(), rows), (1248, 39));
    assert_eq!((template.gate_up_strips(), template.down_strips()), (1, 1));
    check(&template);
    // A row of Z is two whole ranges, so the boundary of the banks is inside Z and costs nothing.
    assert!(template.offset(Buffer::H) > 4 << 20);
    assert_eq!(template.used_bytes(), 39 * 100 * 2048 + 344_064 + 256);
}

#[test]
fn the_table_in_the_documentation_is_what_the_command_prints() {
    let page = include_str!("../../../docs/hexagon.md");
    let table = capacities::table();
    assert!(
        page.contains(&table),
        "docs/hexagon.md should have\n{table}"
    );
}
