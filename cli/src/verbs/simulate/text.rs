//! The answer for people.

use estream_order::Interval;
use estream_schemas::plan::StreamConfig;

use super::Report;
use crate::tables::{grouped, table};

pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    if !report.schedules.is_empty() {
        let mut rows = table(&[
            "",
            "tokens",
            "TTFT ms",
            "bubble",
            "T_io ms",
            "T_exec ms",
            "bytes",
            "reads",
            "records",
        ]);
        for row in &report.schedules {
            let name = match &report.measured {
                None => row.config.schedule.name(),
                Some(_) => "predicted",
            };
            rows.add_row([name.to_owned()].into_iter().chain(row.cells()));
        }
        if let Some(row) = &report.measured {
            rows.add_row(["measured".to_owned()].into_iter().chain(row.cells()));
        }
        out += &format!("{rows}\n");
    }
    for rows in &report.orders {
        let mut orders = table(&[
            rows.config.schedule.name(),
            "bytes",
            "reads",
            "TTFT ms",
            "first group ms",
            "bytes, change",
            "TTFT, change",
        ]);
        for order in &rows.orders {
            orders.add_row([
                order.name.clone(),
                grouped(order.read_bytes),
                format!("{:.1}", order.reads),
                format!("{:.1}", order.ttft_us as f64 / 1e3),
                format!("{:.1}", order.first_group_us as f64 / 1e3),
                change(order.read_change.as_ref()),
                change(order.ttft_change.as_ref()),
            ]);
        }
        out += &format!("{orders}\n\n");
    }
    let configs = report.schedules.iter().map(|row| &row.config);
    let config = configs
        .chain(report.orders.iter().map(|rows| &rows.config))
        .next();
    if let Some(StreamConfig {
        group,
        depth,
        banks,
        ..
    }) = config
    {
        let rows = &report.schedules;
        let by = match rows.iter().any(|row| row.tokens != rows[0].tokens) {
            true => " by length",
            false => "",
        };
        let prompts = match report.prompts {
            1 => format!("one prompt of {} tokens", report.tokens),
            count => format!(
                "{count} prompts, {} tokens in all; means{by}",
                report.tokens
            ),
        };
        let pins = match report.pinned {
            0 => String::new(),
            pinned => format!(", {pinned} of each layer pinned"),
        };
        let warmth = if report.hot { ", hot" } else { "" };
        out += &format!(
            "G = {group}, Q = {depth}, B = {banks}{pins}; {prompts}; times of {} on {}{warmth}\n",
            report.service, report.device
        );
    }
    for path in report.svg.iter().chain(&report.timeline_svg) {
        out += &format!("drawn: {}\n", path.display());
    }
    out
}

/// A change with its interval, and whether it is one.
fn change(change: Option<&Interval>) -> String {
    let Some(interval) = change else {
        return String::new();
    };
    let Interval { mean, low, high } = interval;
    let percent = |share: &f64| format!("{:+.2}", 100.0 * share);
    let verdict = match interval.is_clear() {
        true => "",
        false => " (none)",
    };
    format!(
        "{} % [{}, {}]{verdict}",
        percent(mean),
        percent(low),
        percent(high)
    )
}
