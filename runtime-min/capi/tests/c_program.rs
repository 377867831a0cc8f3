//! A program in C uses the library as an app would. Its cases are in `tests/c`; each is a
//! process of its own here, and a check that fails there ends it with 1.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use estream_runtime::reader::BundleReader;
use estream_tests::{Finished, compile, estream_run, finish, fixture, id_list};
use serde_json::{Value, json};
use tempfile::TempDir;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the libraries of this package for its tests.
fn libraries() -> PathBuf {
    let test = env::current_exe().expect("a test knows where it is");
    test.parent().expect("in a directory").to_owned()
}

/// Compiles C as strictly as a compiler can. The program looks at every access of its own and at what
/// the library copies, and at its end for memory that nobody has freed.
#[track_caller]
fn cc(sources: &[PathBuf], output: &Path, more: &[&OsStr]) {
    let mut command = Command::new("cc");
    command.args([
        "-std=c99",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
    ]);
    command
        .arg("-fsanitize=address,undefined")
        .arg("-fno-sanitize-recover=all");
    command.arg("-I").arg(package().join("include"));
    command.args(sources).arg("-o").arg(output).arg("-pthread");
    finish(command.args(more)).success();
}

fn sources() -> Vec<PathBuf> {
    let files = ["main.c", "cases_use.c", "cases_misuse.c"];
    files
        .map(|file| package().join("tests/c").join(file))
        .into()
}

/// The program, linked with the shared library.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_program");
        link_shared(&sources(), &program);
        program
    })
}

#[track_caller]
fn link_shared(sources: &[PathBuf], program: &Path) {
    let folder = libraries();
    let library = folder.join("libestream.so");
    let mut search = OsStr::new("-Wl,-rpath,").to_owned();
    search.push(&folder);
    cc(sources, program, &[library.as_os_str(), &search]);
}

/// A bundle, and what estream-run computes with it.
struct Desk {
    dir: TempDir,
    ids: Vec<u32>,
    reference: Value,
}

impl Desk {
    #[track_caller]
    fn new() -> Desk {
        let desk = Desk {
            dir: tempfile::tempdir().unwrap(),
            ids: (0..33).map(|i| (i * i + 5) % 544).collect(),
            reference: Value::Null,
        };
        fs::create_dir(desk.at("scratch")).unwrap();
        compile(&fixture("olmoe"), &desk.at("b.estream"), &[]);
        let mut command = estream_run();
        command.arg(desk.at("b.estream"));
        command.args(["--ids", &id_list(&desk.ids), "--all-positions", "--top=0"]);
        command.args([
            "--schedule=compact",
            "-G2",
            "--threads=1",
            "--json",
            "--stats",
        ]);
        command.arg("--logits").arg(desk.at("logits"));
        command.arg("--hidden").arg(desk.at("hidden"));
        let reference = finish(&mut command).success().json();
        Desk { reference, ..desk }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    #[track_caller]
    fn run_with(&self, program: &Path, case: &str) -> Finished {
        let mut command = Command::new(program);
        command.arg(case).arg(self.at("b.estream"));
        command.arg(self.at("scratch")).arg(id_list(&self.ids));
        command.arg(self.at("logits")).arg(self.at("hidden"));
        finish(&mut command).success()
    }

    #[track_caller]
    fn run(&self, case: &str) -> Finished {
        self.run_with(program(), case)
    }
}

/// Cases that need nothing but a bundle.
macro_rules! cases {
    ($($name:ident,)*) => {$(
        #[test]
        fn $name() {
            Desk::new().run(stringify!($name));
        }
    )*};
}

cases! {
    results_are_those_of_estream_run,
    positions_may_be_listed_in_any_order,
    two_runtimes_work_at_once,
    requests_run_in_turn,
    another_thread_cancels,
    closing_ends_what_runs,
    a_budget_counts_results,
    handles_that_are_none,
    null_and_unaligned_pointers,
    small_buffers_stay_untouched,
    bundles_that_are_none,
    structs_of_other_versions,
    requests_that_cannot_be,
    lines_go_to_the_log,
}

/// Numbers that are not times.
fn counts(stats: &Value) -> Vec<(&String, &Value)> {
    let timed = [
        "_us", "bubble", "overlap", "waits", "memory", "plan", "stream", "peak", "layers",
    ];
    let members = stats.as_object().unwrap().iter();
    let mut counts: Vec<_> = members
        .filter(|(name, _)| !timed.iter().any(|end| name.ends_with(end)))
        .filter(|(name, _)| *name != "memory_bytes")
        .collect();
    counts.sort_by_key(|(name, _)| *name);
    counts
}

#[test]
fn stats_have_the_numbers_of_estream_run() {
    let desk = Desk::new();
    let mut stats = desk.run("stats_are_printed").json();
    let members = stats.as_object_mut().unwrap();
    let bundle = members.remove("bundle").unwrap();
    assert_eq!(bundle, desk.reference["identity"]);
    assert_eq!(members.remove("tokens").unwrap(), 33);
    assert_eq!(members.remove("rows").unwrap(), 33);
    let result_bytes = 33 * (544 + 128) * 4;
    assert_eq!(members.remove("result_bytes").unwrap(), result_bytes);

    let reference = &desk.reference["stats"];
    let names = |value: &Value| -> Vec<String> {
        let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        names.sort();
        names
    };
    assert_eq!(names(&stats), names(reference));
    assert_eq!(names(&stats["stream"]), names(&reference["stream"]));
    assert!(stats["records_run"].as_u64().unwrap() > 0);
    let same = counts(reference);
    assert!(same.len() >= 5, "{same:?}");
    assert_eq!(counts(&stats), same);
    for member in ["schedule", "group", "depth", "banks", "early_records"] {
        assert_eq!(stats["stream"][member], reference["stream"][member]);
    }
}

fn stream(schedule: &str, group: usize) -> Value {
    json!({ "schedule": schedule, "group": group, "depth": 1, "banks": 2, "early_records": 1 })
}

/// Puts a plan into the bundle, for it or for another one.
#[track_caller]
fn add_plan(desk: &Desk, name: &str, bundle: &str, rows: &Value) {
    let rate = json!({ "read_bytes": 1, "outstanding": 1, "bytes_per_second": 1 });
    let plan = json!({
        "format": "estream-plan",
        "version": 1,
        "bundle": bundle,
        "profile": { "name": "x", "storage": { "latency_ns": 0, "rates": [rate] } },
        "rows": rows,
    });
    let plans = desk.at("b.estream/plans");
    fs::create_dir_all(&plans).unwrap();
    fs::write(plans.join(format!("{name}.json")), plan.to_string()).unwrap();
}

#[track_caller]
fn identity(desk: &Desk) -> String {
    let reader = BundleReader::open(&desk.at("b.estream")).unwrap();
    reader.identity().to_string()
}

#[test]
fn plans_are_checked_and_told() {
    let desk = Desk::new();
    let rows = json!([
        { "max_tokens": 16, "stream": stream("on-demand", 1) },
        { "max_tokens": 512, "stream": stream("compact", 2), "chunk": 5 },
    ]);
    add_plan(&desk, "good", &identity(&desk), &rows);
    add_plan(&desk, "stranger", &"0".repeat(64), &rows);
    desk.run("plans_are_checked_and_told");
}

#[test]
fn hot_requests_follow_the_hot_column() {
    let desk = Desk::new();
    let row =
        |hot: Value| json!([{ "max_tokens": 512, "stream": stream("compact", 1), "hot": hot }]);
    add_plan(&desk, "heated", &identity(&desk), &row(stream("early", 4)));
    add_plan(
        &desk,
        "impossible",
        &identity(&desk),
        &row(stream("early", 0)),
    );
    desk.run("hot_requests_follow_the_hot_column");
}

#[test]
fn corrupt_experts_end_the_request_only() {
    let desk = Desk::new();
    let experts = desk.at("b.estream/experts-00001.bin");
    let mut bytes = fs::read(&experts).unwrap();
    // Regions begin at multiples of a page, with weights of few bits: bit 0 is never NaN's.
    for record in bytes.chunks_mut(1 << 14) {
        record[0] ^= 1;
    }
    fs::write(&experts, bytes).unwrap();
    desk.run("corrupt_experts_end_the_request_only");
}

#[test]
fn the_static_library_does_the_same() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_program_static");
    let library = libraries().join("libestream.a");
    // What `rustc --print native-static-libs` names for Linux.
    let system = ["-lgcc_s", "-lutil", "-lrt", "-lm", "-ldl"].map(OsStr::new);
    cc(
        &sources(),
        &program,
        &[&[library.as_os_str()], &system[..]].concat(),
    );
    let desk = Desk::new();
    desk.run_with(&program, "results_are_those_of_estream_run");
    desk.run_with(&program, "handles_that_are_none");
}

/// Names that begin with `estream_` and are followed by a parenthesis.
fn functions(header: &str) -> Vec<&str> {
    let lines = header.lines().filter(|line| !line.starts_with("//"));
    let mut functions: Vec<&str> = lines
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("estream_"))
        .collect();
    functions.sort_unstable();
    functions
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let header = fs::read_to_string(package().join("include/estream.h")).unwrap();
    let mut command = Command::new("nm");
    command.args(["-D", "--defined-only", "--format=posix"]);
    let listed = finish(command.arg(libraries().join("libestream.so"))).success();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut exported: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    exported.sort_unstable();
    assert_eq!(exported, functions(&header));
    assert!(exported.len() >= 12, "{exported:?}");
}

#[test]
fn the_example_of_the_documentation_compiles_and_runs() {
    let path = package().join("../../docs/c-api.md");
    let text = fs::read_to_string(path).unwrap();
    let example = text.split_once("```c\n").unwrap().1;
    let example = example.split_once("```\n").unwrap().0;
    let desk = Desk::new();
    let source = desk.at("example.c");
    fs::write(&source, example).unwrap();
    let program = desk.at("example");
    link_shared(&[source], &program);

    let mut command = Command::new(&program);
    let done = finish(command.arg(desk.at("b.estream"))).success();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(said.starts_with("next token: "), "{said}");
    let mut command = Command::new(&program);
    let done = finish(command.arg(desk.at("nowhere")));
    assert_eq!(done.code, 2);
    assert!(done.stderr.contains("does not exist"), "{}", done.stderr);
}
