// A classic script in <head>: sets the chosen theme before the first paint, so that nothing flashes.
(function () {
  const chosen = localStorage.getItem("online-rl-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
