// What the page takes of ECharts, and uPlot: bundled into charts.min.js as the global MemfitCharts.
import * as echarts from 'echarts/core';
import { CustomChart, LineChart, ScatterChart, TreemapChart, HeatmapChart } from 'echarts/charts';
import { DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, TooltipComponent, VisualMapComponent } from 'echarts/components';
import { CanvasRenderer } from 'echarts/renderers';
import uPlot from 'uplot';

echarts.use([
  CanvasRenderer, CustomChart, DataZoomComponent, GridComponent, HeatmapChart, LegendComponent, LineChart, MarkLineComponent,
  ScatterChart, TooltipComponent, TreemapChart, VisualMapComponent,
]);

export { echarts, uPlot };
