//! The figures: as a table for people, as JSON for programs, and as a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Something measured, once a round.
pub(crate) struct Figure {
    name: String,
    unit: &'static str,
    /// Sorted; not empty.
    rounds: Vec<f64>,
    goal: Option<Goal>,
}

/// What a figure should reach. Rivals' figures were measured elsewhere: they tell what to expect, and decide nothing.
pub(crate) struct Goal {
    bound: f64,
    at_most: bool,
    why: &'static str,
}

impl Goal {
    pub(crate) fn at_most(bound: f64, why: &'static str) -> Self {
        Self { bound, at_most: true, why }
    }

    pub(crate) fn at_least(bound: f64, why: &'static str) -> Self {
        Self { bound, at_most: false, why }
    }
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        Self { name: name.into(), unit, rounds, goal: None }
    }

    pub(crate) fn goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    fn median(&self) -> f64 {
        let middle = self.rounds.len() / 2;
        if self.rounds.len().is_multiple_of(2) {
            f64::midpoint(self.rounds[middle - 1], self.rounds[middle])
        } else {
            self.rounds[middle]
        }
    }

    fn spread(&self) -> (f64, f64) {
        (self.rounds[0], self.rounds[self.rounds.len() - 1])
    }

    /// How much of the goal is reached: 1 is all of it, more is better, whichever way the figure itself goes.
    fn reach(&self) -> Option<f64> {
        let goal = self.goal.as_ref()?;
        Some(if goal.at_most { goal.bound / self.median() } else { self.median() / goal.bound })
    }
}

/// A whole run.
pub(crate) struct Report {
    pub(crate) quick: bool,
    pub(crate) figures: Vec<Figure>,
}

impl Report {
    /// One line for each figure.
    pub(crate) fn table(&self) -> String {
        let header = ["figure", "median", "spread", "goal", ""].map(str::to_owned);
        let rows: Vec<_> = [header].into_iter().chain(self.figures.iter().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2), width(3)];
        let mut table = String::new();
        for [name, median, spread, goal, why] in &rows {
            let [first, second, third, fourth] = widths;
            let line = format!("{name:<first$}  {median:>second$}  {spread:>third$}  {goal:<fourth$}  {why}");
            let _ = writeln!(table, "{}", line.trim_end());
        }
        table.push_str(
            "Rivals were measured on another machine, where the bare loop took 6.3 µs: a hint, no verdict.\n",
        );
        table
    }

    fn json(&self) -> Value {
        let figures: Vec<_> = self
            .figures
            .iter()
            .map(|figure| {
                let (least, most) = figure.spread();
                let goal = figure.goal.as_ref().map(|goal| {
                    json!({
                        (if goal.at_most { "at_most" } else { "at_least" }): goal.bound,
                        "why": goal.why,
                        "reached": figure.reach().is_some_and(|reach| reach >= 1.0),
                    })
                });
                json!({
                    "name": figure.name, "unit": figure.unit, "median": figure.median(),
                    "least": least, "most": most, "rounds": figure.rounds, "goal": goal,
                })
            })
            .collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        json!({ "quick": self.quick, "cores": cores, "figures": figures })
    }

    /// A bar for each figure that has a goal, as long as the share of the goal that it reaches.
    fn picture(&self) -> String {
        const ROW: usize = 30;
        const LEFT: usize = 340;
        /// The length of a bar that just reaches its goal, and of the longest that is drawn.
        const GOAL: f64 = 240.0;
        const LONGEST: f64 = 480.0;
        let rows: Vec<_> = self.figures.iter().filter_map(|figure| Some((figure, figure.reach()?))).collect();
        let height = ROW * rows.len() + 50;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"1000\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"10\" y=\"22\" font-weight=\"bold\">NoLag broker: share of the goal reached (longer is better)</text>\n"
        );
        for (place, (figure, reach)) in rows.iter().enumerate() {
            let top = 40 + ROW * place;
            let length = (reach * GOAL).min(LONGEST);
            let colour = if *reach >= 1.0 { "#2a9d5c" } else { "#d98324" };
            let name = escape(&figure.name);
            let value = escape(&format!("{} {}", number(figure.median()), figure.unit));
            let _ = writeln!(
                svg,
                "<text x=\"10\" y=\"{}\">{name}</text>\
                 <rect x=\"{LEFT}\" y=\"{top}\" width=\"{length:.1}\" height=\"20\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{value}</text>",
                top + 15,
                LEFT as f64 + length + 6.0,
                top + 15,
            );
        }
        let goal = LEFT as f64 + GOAL;
        let _ = writeln!(
            svg,
            "<line x1=\"{goal}\" y1=\"30\" x2=\"{goal}\" y2=\"{}\" stroke=\"black\" stroke-dasharray=\"4 3\"/>\n</svg>",
            height - 8
        );
        svg
    }
}

/// Writes the JSON file and the picture beside it.
pub(crate) fn write(report: &Report, json: &Path) -> Result<()> {
    let picture = json.with_extension("svg");
    fs::write(json, format!("{:#}\n", report.json()))
        .with_context(|| format!("cannot write {}", json.display()))?;
    fs::write(&picture, report.picture()).with_context(|| format!("cannot write {}", picture.display()))?;
    println!("\nwritten: {} and {}", json.display(), picture.display());
    Ok(())
}

fn row(figure: &Figure) -> [String; 5] {
    let (least, most) = figure.spread();
    let spread = if figure.rounds.len() > 1 {
        format!("{} – {}", number(least), number(most))
    } else {
        String::new()
    };
    let (goal, why) = match (&figure.goal, figure.reach()) {
        (Some(goal), Some(reach)) => {
            let sign = if goal.at_most { "≤" } else { "≥" };
            let verdict = if reach >= 1.0 { "reached" } else { "not yet" };
            (format!("{sign} {}, {verdict}", number(goal.bound)), format!("({})", goal.why))
        }
        _ => (String::new(), String::new()),
    };
    [figure.name.clone(), format!("{} {}", number(figure.median()), figure.unit), spread, goal, why]
}

/// Three digits that count, and thousands apart.
fn number(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let plain = format!("{value:.decimals$}");
    let (whole, fraction) =
        plain.split_once('.').map_or((&*plain, None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(fraction) = fraction {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    grouped
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{Figure, Goal, Report, number};

    #[test]
    fn numbers_have_three_digits_that_count() {
        assert_eq!(
            [0.5, 12.34, 123.4, 1234.0, 1_234_567.0].map(number),
            ["0.50", "12.3", "123", "1,234", "1,234,567"]
        );
    }

    #[test]
    fn goals_are_reached_from_their_own_side() {
        let low = Figure::new("cost", "µs", vec![2.0, 1.0, 3.0]).goal(Goal::at_most(4.0, "why"));
        let high = Figure::new("rate", "/s", vec![1.0, 2.0]).goal(Goal::at_least(3.0, "why"));
        assert_eq!((low.median(), low.reach()), (2.0, Some(2.0)));
        assert_eq!((high.median(), high.reach()), (1.5, Some(0.5)));
        let table = Report { quick: true, figures: vec![low, high] }.table();
        assert!(table.contains("≤ 4.00, reached") && table.contains("≥ 3.00, not yet"), "{table}");
    }
}
