//! Plots as SVG files.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use tests::measure::Failed;
use tests::measure::sample::Samples;

use crate::experiment::{Experiment, Plot};

const WIDTH: u32 = 860;
const BAR: u32 = 26;
/// Room for the names of lines.
const NAMES: u32 = 230;
/// Bars whose longest is so many times the shortest.
const DECADES_FROM: f64 = 1000.0;
/// Marks of an axis with decades, at most: one for each.
const DECADES: usize = 7;
const FONT: (&str, u32) = ("sans-serif", 13);

/// Draws an experiment's plot into `folder`.
pub fn draw(folder: &Path, one: &Experiment) -> Result<(), Failed> {
    let path = folder.join(one.plot_file());
    match &one.plot {
        Plot::Bars { unit } => {
            let rows = one.rows.iter().filter(|row| row.unit == *unit);
            let bars: Vec<(&str, &Samples)> = rows
                .filter_map(|row| Some((row.what.as_str(), row.value.as_ref().ok()?)))
                .collect();
            let height = 110 + BAR * u32::try_from(bars.len())?;
            let root = SVGBackend::new(&path, (WIDTH, height)).into_drawing_area();
            draw_bars(&root, one.title, unit, &bars)?;
            Ok(root.present()?)
        }
        Plot::Lines { over, unit, series } => {
            let root = SVGBackend::new(&path, (WIDTH, 460)).into_drawing_area();
            draw_lines(&root, one.title, (over, unit), series)?;
            Ok(root.present()?)
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_bars(
    root: &Area<'_>,
    title: &str,
    unit: &str,
    bars: &[(&str, &Samples)],
) -> Result<(), Failed> {
    root.fill(&WHITE)?;
    #[expect(clippy::cast_precision_loss, reason = "some bars")]
    let count = bars.len() as f64;
    let medians = || bars.iter().map(|(_, samples)| samples.median());
    let most = medians().fold(0.0, f64::max) * 1.3 + f64::EPSILON;
    let least = medians().fold(0.0, f64::min) * 1.3;
    // Where the longest bar would leave nothing of others, decades have the same length, from 1 on.
    let shortest = medians()
        .filter(|median| *median > 0.0)
        .fold(most, f64::min);
    let has_decades = least >= 0.0 && most > DECADES_FROM * shortest;
    let length = |value: f64| match has_decades {
        true => value.max(1.0).log10(),
        false => value,
    };
    let label = |at: &f64| match has_decades {
        true => format!("{:.0}", 10f64.powf(*at)),
        false => format!("{at:.1}"),
    };
    let (least, most) = (length(least), length(most));
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(340)
        .build_cartesian_2d(least..most, count..0.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .disable_y_mesh()
        .disable_y_axis()
        .x_desc(unit)
        .x_labels(if has_decades { DECADES } else { 10 })
        .x_label_formatter(&label)
        .label_style(FONT)
        .draw()?;
    for (place, (what, samples)) in (0u32..).zip(bars) {
        let middle = f64::from(place) + 0.5;
        let (low, high) = (middle - 0.32, middle + 0.32);
        let bar = Rectangle::new(
            [(0.0, low), (length(samples.median()), high)],
            BLUE.mix(0.45).filled(),
        );
        chart.draw_series([bar])?;
        // What disturbed a round is in the table; here it would only hide the rest.
        let range = [samples.min(), samples.percentile(90)]
            .map(|end| (length(end).clamp(least, most), middle));
        chart.draw_series([PathElement::new(range.to_vec(), BLACK.stroke_width(1))])?;
        let (_, y) = chart.backend_coord(&(0.0, middle));
        let style = TextStyle::from(FONT.into_font()).color(&BLACK);
        let label = format!("{what}: {:.2}", samples.median());
        root.draw(&Text::new(label, (12, y - 7), style))?;
    }
    Ok(())
}

fn draw_lines(
    root: &Area<'_>,
    title: &str,
    (over, unit): (&str, &str),
    series: &[(String, Vec<(f64, f64)>)],
) -> Result<(), Failed> {
    root.fill(&WHITE)?;
    // Names stand beside the lines, not on them.
    let (root, names) = root.split_horizontally(WIDTH - NAMES);
    let points = || series.iter().flat_map(|(_, points)| points);
    let right = points().map(|(x, _)| *x).fold(1.0, f64::max) * 1.1;
    let top = points().map(|(_, y)| *y).fold(0.0, f64::max) * 1.15 + f64::EPSILON;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d((0.9..right).log_scale(), 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(over)
        .y_desc(unit)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .label_style(FONT)
        .draw()?;
    for (place, (name, points)) in (0..).zip(series) {
        let color = Palette99::pick(usize::try_from(place)?).to_rgba();
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
        chart.draw_series(line.point_size(3))?;
        let y = 40 + 20 * place;
        let sample = vec![(0, y + 7), (16, y + 7)];
        names.draw(&PathElement::new(sample, color.stroke_width(2)))?;
        let style = TextStyle::from(FONT.into_font()).color(&BLACK);
        names.draw(&Text::new(name.as_str(), (22, y), style))?;
    }
    Ok(())
}
