//! The figures: as a table for people, as JSON for programs, and as a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Something measured, once a round.
pub(crate) struct Figure {
    /// The work that was done; figures of the same work stand together.
    work: String,
    name: String,
    unit: &'static str,
    /// Sorted; not empty.
    rounds: Vec<f64>,
    goal: Option<Goal>,
    sides: Option<Sides>,
}

/// The two that a ratio compares, the first over the second.
struct Sides {
    names: [&'static str; 2],
    unit: &'static str,
    /// In the order of the rounds; not empty.
    rounds: [Vec<f64>; 2],
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

    fn sign(&self) -> &'static str {
        if self.at_most { "≤" } else { "≥" }
    }
}

impl Figure {
    pub(crate) fn new(
        work: impl Into<String>,
        name: impl Into<String>,
        unit: &'static str,
        mut rounds: Vec<f64>,
    ) -> Self {
        rounds.sort_by(f64::total_cmp);
        Self { work: work.into(), name: name.into(), unit, rounds, goal: None, sides: None }
    }

    /// How many times as much there is in each round of the first as of the second. The name goes before theirs.
    pub(crate) fn ratio(
        work: impl Into<String>,
        name: &str,
        names: [&'static str; 2],
        unit: &'static str,
        rounds: [Vec<f64>; 2],
    ) -> Self {
        let [over, under] = &rounds;
        let ratios = over.iter().zip(under).map(|(over, under)| over / under).collect();
        let figure = Self::new(work, format!("{name}, {} : {}", names[0], names[1]), "×", ratios);
        Self { sides: Some(Sides { names, unit, rounds }), ..figure }
    }

    pub(crate) fn goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }

    fn median(&self) -> f64 {
        median(&self.rounds)
    }

    fn spread(&self) -> (f64, f64) {
        (self.rounds[0], self.rounds[self.rounds.len() - 1])
    }

    /// How much of the goal is reached: 1 is all of it, more is better, whichever way the figure itself goes.
    fn reach(&self) -> Option<f64> {
        let goal = self.goal.as_ref()?;
        let median = self.median();
        Some(match goal.at_most {
            true if median <= 0.0 => f64::INFINITY,
            true => goal.bound / median,
            false => median / goal.bound,
        })
    }
}

impl Sides {
    fn medians(&self) -> [f64; 2] {
        self.rounds.each_ref().map(|rounds| {
            let mut sorted = rounds.clone();
            sorted.sort_by(f64::total_cmp);
            median(&sorted)
        })
    }
}

/// Of sorted values, at least one.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

/// A whole run.
pub(crate) struct Report {
    /// What was measured, as in "NoLag broker".
    pub(crate) subject: &'static str,
    /// What one must know to read the table, in whole lines.
    pub(crate) notes: &'static str,
    pub(crate) quick: bool,
    pub(crate) figures: Vec<Figure>,
}

impl Report {
    /// One line for each figure, those of the same work below its name.
    pub(crate) fn table(&self) -> String {
        let header = ["", "median", "spread", "goal", "", "", ""].map(str::to_owned);
        let rows: Vec<_> = self.figures.iter().map(row).collect();
        let widths: [usize; 7] = std::array::from_fn(|column| {
            let rows = [&header].into_iter().chain(&rows);
            rows.map(|row| row[column].chars().count()).max().unwrap_or(0)
        });
        let line = |row: &[String; 7]| {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
                // Numbers stand to the right; what nobody uses takes no room.
                let _ = match column {
                    _ if width == 0 => Ok(()),
                    1 | 2 => write!(line, "  {cell:>width$}"),
                    _ => write!(line, "  {cell:<width$}"),
                };
            }
            line.trim_end().to_owned() + "\n"
        };

        let mut table = line(&header);
        let mut work = "";
        for (figure, row) in self.figures.iter().zip(&rows) {
            if figure.work != work {
                work = &figure.work;
                let _ = writeln!(table, "{work}");
            }
            table += &line(row);
        }
        table + "\n" + self.notes
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
                let sides = figure.sides.as_ref().map(|sides| {
                    let [first, second] = sides.medians();
                    json!({
                        "unit": sides.unit,
                        (sides.names[0]): { "median": first, "rounds": sides.rounds[0] },
                        (sides.names[1]): { "median": second, "rounds": sides.rounds[1] },
                    })
                });
                json!({
                    "work": figure.work, "name": figure.name, "unit": figure.unit, "median": figure.median(),
                    "least": least, "most": most, "rounds": figure.rounds, "goal": goal,
                    "sides": sides,
                })
            })
            .collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        json!({ "quick": self.quick, "cores": cores, "figures": figures })
    }

    /// A bar for each figure that has a goal, as long as the share of the goal that it reaches.
    fn picture(&self) -> String {
        const ROW: usize = 30;
        /// About what a letter takes.
        const LETTER: f64 = 6.6;
        /// The length of a bar that just reaches its goal, and of the longest that is drawn.
        const GOAL: f64 = 200.0;
        const LONGEST: f64 = 400.0;
        let rows: Vec<_> = self.figures.iter().filter_map(|figure| Some((figure, figure.reach()?))).collect();
        let label = |figure: &Figure| format!("{}: {}", figure.work, figure.name);
        let longest = rows.iter().map(|(figure, _)| label(figure).chars().count()).max().unwrap_or(0);
        let left = (10.0 + LETTER * longest as f64).max(370.0).round();
        let width = left + LONGEST + 230.0;
        let height = ROW * rows.len() + 70;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"10\" y=\"22\" font-weight=\"bold\">{subject}: how much of each goal is reached (longer is better, cut at twice the goal)</text>\n",
            subject = self.subject,
        );
        let goal = left + GOAL;
        let _ = writeln!(
            svg,
            "<text x=\"{goal}\" y=\"48\" text-anchor=\"middle\">goal</text>\
             <line x1=\"{goal}\" y1=\"54\" x2=\"{goal}\" y2=\"{}\" stroke=\"black\" stroke-dasharray=\"4 3\"/>",
            height - 8
        );
        for (place, (figure, reach)) in rows.iter().enumerate() {
            let top = 60 + ROW * place;
            let length = (reach * GOAL).min(LONGEST);
            let colour = if *reach >= 1.0 { "#2a9d5c" } else { "#d98324" };
            let name = escape(&label(figure));
            let [_, median, _, goal, ..] = row(figure);
            // White around the letters keeps them readable on the line that marks the goal.
            let _ = writeln!(
                svg,
                "<text x=\"10\" y=\"{text}\">{name}</text>\
                 <rect x=\"{left}\" y=\"{top}\" width=\"{length:.1}\" height=\"20\" fill=\"{colour}\"/>\
                 <text x=\"{right:.1}\" y=\"{text}\" stroke=\"white\" stroke-width=\"4\" paint-order=\"stroke\">{value}</text>",
                text = top + 15,
                right = left + length + 6.0,
                value = escape(&format!("{median} (goal {goal})")),
            );
        }
        svg + "</svg>\n"
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

/// The cells of a figure's line: name, median, spread, goal, whether that is reached, the two that are compared, and why it is
/// the goal.
fn row(figure: &Figure) -> [String; 7] {
    let (least, most) = figure.spread();
    let spread = if figure.rounds.len() > 1 {
        format!("{} – {}", number(least), number(most))
    } else {
        String::new()
    };
    let [goal, verdict, why] = match (&figure.goal, figure.reach()) {
        (Some(goal), Some(reach)) => [
            format!("{} {}", goal.sign(), number(goal.bound)),
            if reach >= 1.0 { "reached" } else { "not yet" }.to_owned(),
            goal.why.to_owned(),
        ],
        _ => Default::default(),
    };
    let sides = figure.sides.as_ref().map_or_else(String::new, |sides| {
        let [first, second] = sides.medians();
        format!("{} : {}", number(first), amount(second, sides.unit))
    });
    [figure.name.clone(), amount(figure.median(), figure.unit), spread, goal, verdict, sides, why]
}

/// A number with its unit.
fn amount(value: f64, unit: &str) -> String {
    let number = number(value);
    let joined = number.ends_with(['k', 'M']) && unit.starts_with('/');
    number + if joined { "" } else { " " } + unit
}

/// Three digits that count.
fn number(value: f64) -> String {
    let digits = |value: f64| {
        let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        format!("{value:.decimals$}")
    };
    match value {
        999_500.0.. => digits(value / 1e6) + " M",
        9_999.5.. => digits(value / 1e3) + " k",
        999.5.. => format!("{},{:03}", (value.round() / 1e3).floor(), value.round() % 1e3),
        _ => digits(value),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{Figure, Goal, Report, amount, number};

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        let rounds = [vec![2.0, 9.0, 4.0], vec![1.0, 3.0, 1.0]];
        let ratio = Figure::ratio("work", "rate", ["ours", "theirs"], "/s", rounds);
        assert_eq!(ratio.rounds, [2.0, 3.0, 4.0]);
        let report = Report { subject: "All", notes: "", quick: true, figures: vec![ratio] };
        let table = report.table();
        assert!(table.contains("rate, ours : theirs") && table.contains("4.00 : 1.00 /s"), "{table}");
        let sides = &report.json()["figures"][0]["sides"];
        assert_eq!((&sides["ours"]["median"], &sides["theirs"]["median"]), (&4.0.into(), &1.0.into()));
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let shown =
            [0.5, 12.34, 123.4, 999.9, 1_234.0, 9_999.9, 567_890.0, 999_999.0, 123_456_789.0].map(number);
        assert_eq!(shown, ["0.50", "12.3", "123", "1,000", "1,234", "10.0 k", "568 k", "1.00 M", "123 M"]);
        assert_eq!(amount(1_234_567.0, "/s"), "1.23 M/s");
        assert_eq!(amount(123.0, "/s"), "123 /s");
        assert_eq!(amount(1.5, "µs"), "1.50 µs");
    }

    #[test]
    fn goals_are_reached_from_their_own_side() {
        let low = Figure::new("work", "cost", "µs", vec![2.0, 1.0, 3.0]).goal(Goal::at_most(4.0, "why"));
        let high = Figure::new("work", "rate", "/s", vec![1.0, 2.0]).goal(Goal::at_least(3.0, "why"));
        assert_eq!((low.median(), low.reach()), (2.0, Some(2.0)));
        assert_eq!((high.median(), high.reach()), (1.5, Some(0.5)));
        let none = Figure::new("work", "lost", "", vec![0.0]).goal(Goal::at_most(0.0, "why"));
        assert!(none.reach().is_some_and(|reach| reach >= 1.0), "nothing is as little as asked");
        let table = Report { subject: "All", notes: "", quick: true, figures: vec![low, high] }.table();
        assert_eq!(table.matches("work\n").count(), 1, "{table}");
        let words: Vec<_> = table.split_whitespace().collect::<Vec<_>>();
        let table = words.join(" ");
        assert!(table.contains("≤ 4.00 reached why") && table.contains("≥ 3.00 not yet why"), "{table}");
    }
}
