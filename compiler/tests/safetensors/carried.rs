//! Files that travel with the weights, and the licence.

use std::fs::{self, File};

use estream_compiler::ingest::{CarriedContent, IngestError, Notice};
use estream_schemas::exit::Exit;

use super::{Dir, says};

fn checkpoint() -> Dir {
    Dir::new().shard("model.safetensors", &[("a", 1)])
}

#[test]
fn tokenizer_files_are_carried_and_others_are_not() {
    let dir = checkpoint()
        .with("tokenizer.json", "{}")
        .with("chat_template.jinja", "{{ 1 }}")
        .with("vocab.txt", "a")
        .with("modeling_custom.py", "import os")
        .with("training_args.bin", "x");
    let checkpoint = dir.open().expect("opens");
    let names: Vec<_> = checkpoint
        .tokenizer
        .iter()
        .map(|file| &*file.name)
        .collect();
    assert_eq!(
        names,
        ["chat_template.jinja", "tokenizer.json", "vocab.txt"]
    );
    for file in &checkpoint.tokenizer {
        match &file.content {
            CarriedContent::File(path) => assert_eq!(*path, dir.path(&file.name)),
            CarriedContent::Bytes(_) => panic!("{} was read", file.name),
        }
    }
}

#[test]
fn c47_a_tokenizer_that_is_a_git_lfs_pointer_is_refused() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    let error = checkpoint()
        .with("tokenizer.json", pointer)
        .refused(Exit::Invalid);
    says(&error, &["tokenizer.json", "git lfs pull"]);
}

#[test]
fn a_file_too_large_to_carry_is_refused_before_it_is_read() {
    let dir = checkpoint();
    let file = File::create(dir.path("tokenizer.json")).expect("creates");
    file.set_len((64 << 20) + 1).expect("a hole");
    let error = dir.refused(Exit::Invalid);
    assert!(matches!(error, IngestError::TooLarge { .. }), "{error}");
}

#[test]
fn licence_files_are_carried_and_a_directory_of_them_is_noticed() {
    let dir = checkpoint()
        .with("LICENSE.md", "text")
        .with("NOTICE", "text")
        .with("USE_POLICY.md", "text")
        .with("COPYING", "text");
    fs::create_dir(dir.path("LICENSES")).expect("a directory");
    let checkpoint = dir.open().expect("opens");
    let names: Vec<_> = checkpoint
        .license_files
        .iter()
        .map(|file| &*file.name)
        .collect();
    assert_eq!(names, ["COPYING", "LICENSE.md", "NOTICE", "USE_POLICY.md"]);
    let is_noticed =
        |notice: &Notice| matches!(notice, Notice::NotCarried { file, .. } if file == "LICENSES");
    assert!(checkpoint.notices.iter().any(is_noticed));
}

#[test]
fn c75_a_model_card_without_a_readable_licence_is_never_fatal() {
    let cards = [
        None,
        Some("# No front matter\nlicense: mit\n".as_bytes()),
        Some(b"---\nlicense: [unclosed\n  : bad: yaml\n\t---\n"),
        Some(b"---\nlicense: mit"),
        Some(b"\xff\xfe\0\0"),
        Some(b""),
    ];
    for card in cards {
        let dir = checkpoint();
        let dir = match card {
            Some(card) => dir.with("README.md", card),
            None => dir,
        };
        let checkpoint = dir.open().expect("opens");
        assert_eq!(checkpoint.license, None);
        let notices = &checkpoint.notices;
        assert!(
            matches!(&notices[..], [Notice::License { .. }]),
            "{notices:?}"
        );
        assert!(notices[0].to_string().starts_with("licence unknown"));
    }
}

#[test]
fn c75_a_declared_licence_is_taken_from_the_card_and_never_from_a_licence_file() {
    let dir = checkpoint()
        .with("README.md", "---\nlicense: apache-2.0\n---\n")
        .with("LICENSE", "MIT License");
    let checkpoint = dir.open().expect("opens");
    assert_eq!(checkpoint.license.as_deref(), Some("apache-2.0"));
    assert!(checkpoint.notices.is_empty(), "{:?}", checkpoint.notices);
    let dir = self::checkpoint().with("LICENSE", "MIT License");
    assert_eq!(dir.open().expect("opens").license, None);
}
