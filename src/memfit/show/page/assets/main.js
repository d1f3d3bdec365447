// Puts the page together from the data embedded in it.
const data = JSON.parse(byId('memfit-data').textContent);
const run = data.run;
setTheme(window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
fillHead(run);
const charts = [makeTimeline(run, data.other), makeSteps(run), fillSystem(run)].filter(Boolean);
makeLedgers(run);
fillComparison(data.comparison);
fillProcesses(run);
fillEnergy(run);
fillSampler(run);
fillNotes(run);
fillEnvironment(run);

function setTheme(name) { document.documentElement.dataset.theme = name; }
function redrawAll() { for (const chart of charts) chart.draw(); }
byId('theme').addEventListener('click', () => { setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'); redrawAll(); });
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', (event) => { setTheme(event.matches ? 'dark' : 'light'); redrawAll(); });
let before = null;
window.addEventListener('beforeprint', () => { before = document.documentElement.dataset.theme; setTheme('light'); redrawAll(); });
window.addEventListener('afterprint', () => { setTheme(before || 'light'); redrawAll(); });

// Packed columns become plain numbers, so that the file can be read by anything.
function expanded(value) {
  if (Array.isArray(value)) return value.map(expanded);
  if (value === null || typeof value !== 'object') return value;
  if (value.base64 !== undefined) return Array.from(unpack(value), (number) => (Number.isNaN(number) ? null : number));
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, expanded(inner)]));
}
byId('download').addEventListener('click', () => {
  const link = element('a');
  link.href = URL.createObjectURL(new Blob([JSON.stringify(expanded(data))], { type: 'application/json' }));
  link.download = `memfit-${run.run_id}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
document.documentElement.dataset.ready = 'yes';
