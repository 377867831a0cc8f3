//! The header of a template: its text, and what a C compiler makes of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use estream_hexagon::wire::Wire;
use estream_hexagon::{Arch, ExpertShape, Template, file_name, header};
use estream_schemas::layout::Layout;

fn template(hidden: u64, ff: u64, layouts: [&str; 3], vtcm_bytes: u64) -> Template {
    let layouts = layouts.map(|name| name.parse::<Layout>().unwrap());
    let shape = ExpertShape::new(hidden, ff, 1, layouts).unwrap();
    Template::new(&shape, vtcm_bytes).unwrap()
}

fn olmoe() -> Template {
    template(2048, 1024, ["q4_0.t32.direct"; 3], 8 << 20)
}

#[test]
fn the_header_of_olmoe_is_the_stored_one() {
    let stored = include_str!("experts-2048x1024-q4_0.t32.direct-v79.h");
    let name = file_name(&olmoe(), Arch::V79);
    assert_eq!(name, "experts-2048x1024-q4_0.t32.direct-v79.h");
    let text = header(&olmoe(), Arch::V79);
    assert_eq!(
        text, stored,
        "if it is as it should be, make it tests/{name}"
    );
}

#[test]
fn a_compiler_reads_the_plan_that_a_message_has() {
    let mixed = ["q4_0.t32.pair", "q8_0.t32", "q4_1.t32.direct"];
    for (template, arch, codes) in [
        (olmoe(), Arch::V73, [1, 1, 1]),
        (template(100, 70, mixed, 1 << 20), Arch::V81, [2, 9, 3]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let include = dir.path().join("template.h");
        fs::write(&include, header(&template, arch)).unwrap();
        let source = dir.path().join("main.c");
        fs::write(&source, PRINTER).unwrap();
        let program = dir.path().join("main");
        let status = compiler(&program, &source, dir.path()).status().unwrap();
        assert!(status.success(), "{}", header(&template, arch));
        let output = Command::new(&program).output().unwrap();
        let shape = template.shape();
        let row_bytes = u64::from(arch.dma().row_bytes);
        let numbers = [
            shape.hidden(),
            shape.ff(),
            codes[0],
            codes[1],
            codes[2],
            row_bytes,
        ];
        let numbers = numbers.map(|number| u32::try_from(number).unwrap());
        let mut expected: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_bytes())
            .collect();
        expected.extend(template.plan().to_bytes());
        assert_eq!(output.stdout, expected);
    }
}

/// What it says, as bytes.
const PRINTER: &str = r#"
#include <stdio.h>
#include "template.h"

int main(void)
{
    const uint32_t numbers[] = {
        ESTREAM_TEMPLATE_HIDDEN, ESTREAM_TEMPLATE_FF,   ESTREAM_TEMPLATE_GATE,
        ESTREAM_TEMPLATE_UP,     ESTREAM_TEMPLATE_DOWN, ESTREAM_DMA_MAX_ROW_BYTES,
    };
    const struct estream_plan *plan = &estream_template_plan;
    size_t written = fwrite(numbers, sizeof numbers, 1, stdout);
    return written + fwrite(plan, sizeof *plan, 1, stdout) == 2 ? 0 : 1;
}
"#;

#[test]
fn two_templates_or_another_architecture_are_errors_of_the_compiler() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("template.h"), header(&olmoe(), Arch::V79)).unwrap();
    let source = dir.path().join("main.c");
    let says = |text: &str| {
        fs::write(&source, text).unwrap();
        let program = dir.path().join("main");
        let output = compiler(&program, &source, dir.path()).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let one = "#include \"template.h\"\nint main(void) { return estream_template_plan.zero; }\n";
    assert!(says(one).0);
    let (compiles, errors) = says(&format!("#include \"template.h\"\n{one}"));
    assert!(!compiles && errors.contains("one template"), "{errors}");
    let (compiles, errors) = says(&format!("#define __HEXAGON_ARCH__ 73\n{one}"));
    assert!(!compiles && errors.contains("for v79"), "{errors}");
}

fn compiler(program: &Path, source: &Path, includes: &Path) -> Command {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"]);
    command.arg(program).arg(source);
    command.arg("-I").arg(includes).arg("-I").arg(kernels);
    command
}
