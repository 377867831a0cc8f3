//! What is wrong with a profile, all of it, and what it lacks.
//!
//! A parser stops at the first thing it cannot read. So every member is read alone: put into the
//! least that is valid, the error is that of the member.

use estream_schemas::profile::{
    Device, FIGURES, Limits, OtherTime, Profile, Rate, RecordTime, Service, Source, Sources,
    Storage,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::profiles::ProfileText;

/// What a look at a profile showed.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    /// What it calls itself.
    pub(crate) profile: String,
    /// All that is wrong.
    pub(crate) problems: Vec<String>,
    /// What it could say and does not.
    pub(crate) missing: Vec<Missing>,
    /// Figures that are guesses.
    pub(crate) assumed: Vec<String>,
    /// Figures of which it is not said where they come from.
    pub(crate) unsourced: Vec<String>,
}

/// A section that is not there.
#[derive(Debug, Serialize)]
pub(crate) struct Missing {
    member: &'static str,
    /// Nothing can be planned without it.
    is_needed: bool,
    what: &'static str,
}

/// How a table is read.
struct Form {
    /// The least that is valid.
    least: fn() -> Value,
    parse: fn(Value) -> Result<(), String>,
    /// Members that are tables, or lists of tables.
    tables: &'static [(&'static str, Form)],
    lists: &'static [(&'static str, Form)],
}

const fn form<T: DeserializeOwned>(least: fn() -> Value) -> Form {
    Form {
        least,
        parse: parse::<T>,
        tables: &[],
        lists: &[],
    }
}

fn parse<T: DeserializeOwned>(value: Value) -> Result<(), String> {
    let parsed: Result<T, _> = serde_json::from_value(value);
    parsed.map(drop).map_err(|error| error.to_string())
}

fn nothing() -> Value {
    json!({})
}

fn rate() -> Value {
    json!({"read_bytes": 1, "outstanding": 1, "bytes_per_second": 1})
}

fn other() -> Value {
    json!({"tokens": 1, "ns": 1})
}

fn record() -> Value {
    json!({"rows": 1, "ns": 1})
}

fn storage() -> Value {
    json!({"latency_ns": 0, "rates": [rate()]})
}

fn service() -> Value {
    json!({"name": "x", "record_bytes": 1, "other": [other()], "records": [record()]})
}

const RATES: Form = form::<Rate>(rate);

const PROFILE: Form = Form {
    tables: &[
        ("device", form::<Device>(nothing)),
        ("limits", form::<Limits>(nothing)),
        ("sources", form::<Sources>(nothing)),
        (
            "storage",
            Form {
                lists: &[("rates", RATES), ("hot_rates", RATES)],
                ..form::<Storage>(storage)
            },
        ),
    ],
    lists: &[(
        "services",
        Form {
            lists: &[
                ("other", form::<OtherTime>(other)),
                ("records", form::<RecordTime>(record)),
            ],
            ..form::<Service>(service)
        },
    )],
    ..form::<Profile>(|| json!({"name": "x", "storage": storage()}))
};

/// Looks at all of a profile.
pub(crate) fn check(given: &ProfileText) -> Checked {
    let value: Result<Value, String> = given.parse();
    let mut problems = Vec::new();
    let members = match value {
        Err(why) => {
            problems.push(why);
            Map::new()
        }
        Ok(value) => {
            PROFILE.examine("", &value, &mut problems);
            // Rules of all members together, and of the text itself.
            if let (true, Err(why)) = (problems.is_empty(), given.parse::<Profile>()) {
                problems.push(why);
            }
            value.as_object().cloned().unwrap_or_default()
        }
    };
    let sources = members.get("sources").and_then(Value::as_object);
    let sources = sources.into_iter().flatten().filter_map(|(figure, of)| {
        let source: Option<Source> = serde_json::from_value(of.clone()).ok();
        Some((figure.clone(), source?))
    });
    let sources = Sources(sources.collect());
    let unsourced = FIGURES
        .iter()
        .filter(|figure| states(&members, figure) && !sources.0.contains_key(**figure));
    let name = members.get("name").and_then(Value::as_str);
    Checked {
        profile: name.unwrap_or(&given.name).to_owned(),
        problems,
        missing: missing(&members),
        assumed: sources.assumed().map(str::to_owned).collect(),
        unsourced: unsourced.map(|figure| (*figure).to_owned()).collect(),
    }
}

impl Form {
    /// Adds what is wrong with a table to `problems`; its members are named after `at`.
    fn examine(&self, at: &str, value: &Value, problems: &mut Vec<String>) {
        let (Value::Object(members), Value::Object(least)) = (value, (self.least)()) else {
            let name = match at {
                "" => "the file",
                at => at.trim_end_matches('.'),
            };
            problems.push(format!("{name}: it is no table"));
            return;
        };
        for name in least.keys().filter(|name| !members.contains_key(*name)) {
            problems.push(format!("{at}{name}: it is missing"));
        }
        for (name, value) in members {
            let named = |forms: &'static [(&str, Form)]| {
                let form = forms.iter().find(|(form, _)| form == name);
                form.map(|(_, form)| form)
            };
            let at = format!("{at}{name}");
            let before = problems.len();
            let mut rest = value.clone();
            if let Some(table) = named(self.tables) {
                table.examine(&format!("{at}."), value, problems);
            }
            if let (Some(row), Value::Array(rows)) = (named(self.lists), &mut rest) {
                row.examine_rows(&at, rows, problems);
            }
            // What has sound parts can still be wrong as a whole; of a list, what is sound of it.
            let rows = named(self.lists).and(rest.as_array());
            let is_left = rows.is_some_and(|rows| !rows.is_empty());
            if problems.len() == before || is_left {
                let mut one = least.clone();
                one.insert(name.clone(), rest);
                if let Err(why) = (self.parse)(Value::Object(one)) {
                    problems.push(format!("{at}: {why}"));
                }
            }
        }
    }

    /// The same of every table of a list; those with something wrong are taken out.
    fn examine_rows(&self, at: &str, rows: &mut Vec<Value>, problems: &mut Vec<String>) {
        let mut index = 0;
        rows.retain(|row| {
            let before = problems.len();
            self.examine(&format!("{at}[{index}]."), row, problems);
            index += 1;
            problems.len() == before
        });
    }
}

/// Whether a figure is there: a member of the profile, of a table in it, or of a table of a list.
fn states(members: &Map<String, Value>, figure: &str) -> bool {
    match figure.split_once('.') {
        None => members.contains_key(figure),
        Some((table, member)) => match members.get(table) {
            Some(Value::Array(rows)) => rows.iter().any(|row| row.get(member).is_some()),
            Some(table) => table.get(member).is_some(),
            None => false,
        },
    }
}

fn missing(members: &Map<String, Value>) -> Vec<Missing> {
    let hot = states(members, "storage.hot_rates");
    let all = [
        (
            members.contains_key("services"),
            Missing {
                member: "services",
                is_needed: true,
                what: "how long the device computes, by model; measure it, or write it by hand",
            },
        ),
        (
            members.contains_key("budget_bytes"),
            Missing {
                member: "budget_bytes",
                is_needed: false,
                what: "the most memory; without it, plan asks for --budget",
            },
        ),
        (
            members.contains_key("limits"),
            Missing {
                member: "limits",
                is_needed: false,
                what: "what an accelerator takes at most; without it, anything fits",
            },
        ),
        (
            hot,
            Missing {
                member: "storage.hot_rates",
                is_needed: false,
                what: "bandwidth of a hot device; without it, plan has no column for one",
            },
        ),
    ];
    let all = all.into_iter();
    all.filter(|(there, _)| !there)
        .map(|(_, missing)| missing)
        .collect()
}

impl Checked {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let name = &self.profile;
        let mut text = match self.problems.len() {
            0 => format!("{name}: nothing is wrong\n"),
            1 => format!("{name}: one thing is wrong\n"),
            count => format!("{name}: {count} things are wrong\n"),
        };
        for problem in &self.problems {
            text += &format!("  - {}\n", problem.trim_end().replace('\n', "\n    "));
        }
        for Missing {
            member,
            is_needed,
            what,
        } in &self.missing
        {
            let needed = match is_needed {
                true => "missing, and needed for planning",
                false => "not there",
            };
            text += &format!("{needed}: {member}: {what}\n");
        }
        for (what, figures) in [
            ("assumed", &self.assumed),
            ("without a source", &self.unsourced),
        ] {
            if !figures.is_empty() {
                text += &format!("{what}: {}\n", figures.join(", "));
            }
        }
        text
    }
}
