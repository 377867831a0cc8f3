//! The answer for people.

use comfy_table::Table;

use super::report::{BudgetReport, Predicted, Refused, Report, RowReport};
use crate::tables::{grouped, table};

pub(super) fn text(report: &Report<'_>) -> String {
    let mut text = String::new();
    for plan in &report.plans {
        text += &format!(
            "{} on {}, times of {}, within {} bytes\n",
            report.bundle.display(),
            report.device,
            report.service,
            grouped(plan.budget_bytes)
        );
        text += &match &plan.refused {
            Some(refused) => refusal(refused),
            None => rows(plan),
        };
    }
    if let Some(path) = &report.stored {
        text += &format!("stored: {}\n", path.display());
    }
    if let Some(path) = report.svg {
        text += &format!("drawn: {}\n", path.display());
    }
    text
}

fn rows(plan: &BudgetReport) -> String {
    let mut best = configurations("tokens");
    for row in &plan.rows {
        add(&mut best, row.tokens.to_string(), &row.chosen);
        if let Some(next) = &row.runner_up {
            add(&mut best, "next best".to_owned(), next);
        }
    }
    let mut text = format!("{best}\n");
    if plan.rows.iter().any(|row| row.hot.is_some()) {
        text += &hot(&plan.rows);
    }
    for row in &plan.rows {
        text += &format!("{} tokens, Q₀ = {}\n", row.tokens, row.q0);
        for line in &row.inequalities {
            text += &format!("  {}\n", line.text);
        }
        for reason in &row.explained {
            text += &format!("  not {}\n", reason.reason);
        }
        if !row.pareto.is_empty() {
            let count = row.configurations.unwrap_or(0);
            text += &format!(
                "{} configurations, of which none is better than\n",
                grouped(count as u64)
            );
            let mut frontier = configurations("memory and time");
            for one in &row.pareto {
                add(&mut frontier, String::new(), one);
            }
            text += &format!("{frontier}\n");
        }
    }
    text
}

fn hot(rows: &[RowReport]) -> String {
    let mut table = table(&[
        "when hot",
        "schedule",
        "G",
        "Q",
        "B",
        "TTFT ms",
        "this plan",
        "slower by",
    ]);
    for row in rows {
        let Some(hot) = &row.hot else { continue };
        let config = &hot.chosen.config;
        let mut cells = vec![row.tokens.to_string()];
        cells.extend(match hot.differs {
            true => [
                config.schedule.name().to_owned(),
                config.group.to_string(),
                config.depth.to_string(),
                config.banks.to_string(),
            ],
            false => ["the same", "", "", ""].map(str::to_owned),
        });
        cells.push(millis(hot.chosen.ttft_us));
        cells.push(millis(hot.cold_ttft_us));
        cells.push(format!("{:.2} %", hot.regret_pct));
        table.add_row(cells);
    }
    format!("{table}\n")
}

fn refusal(refused: &Refused) -> String {
    let mut text = "nothing fits:\n".to_owned();
    for line in refused.inequalities.iter().filter(|line| !line.holds) {
        text += &format!("  {}\n", line.text);
    }
    let held = refused.inequalities.iter().filter(|line| line.holds);
    text += &format!("  {} others hold, which --json lists\n", held.count());
    text + &match refused.least_budget_bytes {
        Some(bytes) => format!("the smallest budget that would do: {bytes} bytes\n"),
        None => "no budget would do: the limits of the device forbid it\n".to_owned(),
    }
}

fn configurations(first: &str) -> Table {
    table(&[
        first,
        "schedule",
        "G",
        "Q",
        "B",
        "TTFT ms",
        "bubble",
        "bytes read",
        "arena bytes",
        "memory bytes",
    ])
}

fn add(table: &mut Table, first: String, one: &Predicted) {
    let config = &one.config;
    table.add_row([
        first,
        config.schedule.name().to_owned(),
        config.group.to_string(),
        config.depth.to_string(),
        config.banks.to_string(),
        millis(one.ttft_us),
        format!("{:.1} %", 100.0 * one.bubble),
        grouped(one.read_bytes),
        grouped(one.arena_bytes),
        grouped(one.memory_bytes),
    ]);
}

fn millis(us: u64) -> String {
    format!("{:.3}", us as f64 / 1e3)
}
