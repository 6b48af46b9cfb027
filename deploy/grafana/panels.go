package grafana

import (
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	markdown "github.com/grafana/grafana-foundation-sdk/go/text"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// line is a query of a graph, and its legend.
type line struct{ expr, legend string }

// quantile is a quantile of a histogram, for each value of a label.
func quantile(q, histogram, by string) line {
	return line{
		fmt.Sprintf(`histogram_quantile(%s, sum by (%s, le) (rate(%s_bucket{instance=~"$instance"}[$__rate_interval])))`, q, by, histogram),
		fmt.Sprintf("%s {{%s}}", q, by),
	}
}

// graph is a panel of lines over time, a third of the width.
func graph(title, description, unit string, lines ...line) *timeseries.PanelBuilder {
	p := timeseries.NewPanelBuilder().Title(title).Description(description).Datasource(source()).
		Unit(unit).Min(0).Span(8).Height(8).FillOpacity(10).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom)).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending))
	for i, l := range lines {
		p.WithTarget(prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).Expr(l.expr).LegendFormat(l.legend).Range())
	}
	return p
}

// bounds are from where on a number is shown in red, or up to where.
type bounds []dashboard.Threshold

func from(red float64) bounds {
	return bounds{{Color: "green"}, {Value: &red, Color: "red"}}
}

func below(red float64) bounds {
	return bounds{{Color: "red"}, {Value: &red, Color: "green"}}
}

// alarm is one number, which is green if all is well.
func alarm(title, unit, expr string, b bounds) *stat.PanelBuilder {
	return stat.NewPanelBuilder().Title(title).Datasource(source()).Unit(unit).Span(4).Height(4).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		ColorMode(common.BigValueColorModeBackground).GraphMode(common.BigValueGraphModeNone).
		Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(b)).
		WithTarget(prometheus.NewDataqueryBuilder().RefId("A").Expr(expr).Instant())
}

// figure is one number and how it came about.
func figure(title, unit, expr string) *stat.PanelBuilder {
	return stat.NewPanelBuilder().Title(title).Datasource(source()).Unit(unit).Span(4).Height(4).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		ColorMode(common.BigValueColorModeNone).GraphMode(common.BigValueGraphModeArea).
		WithTarget(prometheus.NewDataqueryBuilder().RefId("A").Expr(expr).Range())
}

// list shows the labels of what a query finds.
func list(title, expr string) *table.PanelBuilder {
	return table.NewPanelBuilder().Title(title).Datasource(source()).Span(8).Height(8).
		WithTarget(prometheus.NewDataqueryBuilder().RefId("A").Expr(expr).Instant().Format(prometheus.PromQueryFormatTable))
}

func note(title, content string) *markdown.PanelBuilder {
	return markdown.NewPanelBuilder().Title(title).Mode(markdown.TextModeMarkdown).Content(content).Span(8).Height(8)
}

// number gives the panels the ids that links and annotations go by.
func number(d *dashboard.Dashboard) {
	for i := range d.Panels {
		id := uint32(i + 1)
		if p := d.Panels[i].Panel; p != nil {
			p.Id = &id
		}
		if r := d.Panels[i].RowPanel; r != nil {
			r.Id = id
		}
	}
}
