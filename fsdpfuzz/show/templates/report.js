"use strict";
(function () {
  var status = document.getElementById("status");

  function copyByHand(text) {
    var area = document.createElement("textarea");
    area.value = text;
    area.className = "hidden";
    document.body.appendChild(area);
    area.select();
    var done = document.execCommand("copy");
    area.remove();
    return done ? Promise.resolve() : Promise.reject(new Error("copying is not allowed"));
  }

  function copy(text) {
    if (navigator.clipboard && window.isSecureContext) {
      return navigator.clipboard.writeText(text).catch(function () { return copyByHand(text); });
    }
    return copyByHand(text);
  }

  function say(button, word) {
    button.textContent = word;
    status.textContent = word;
    setTimeout(function () { button.textContent = "Copy"; status.textContent = ""; }, 2000);
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("button.copy");
    if (!button) { return; }
    var code = button.closest(".code").querySelector("code");
    copy(code.textContent).then(
      function () { say(button, "Copied"); },
      function () {
        var range = document.createRange();
        range.selectNodeContents(code);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        say(button, "Selected");
      }
    );
  });

  var readout = document.querySelector(".readout");
  function read(event) {
    var cell = event.target.closest(".map td");
    if (!cell || cell.classList.contains("corner") || cell.colSpan > 1) { return; }
    var table = cell.closest("table");
    var row = cell.parentNode.querySelector("th").textContent;
    var column = table.tHead.rows[0].cells[cell.cellIndex].textContent;
    var text = cell.textContent.trim();
    readout.textContent =
      cell.classList.contains("all") ? row + ": " + text + " cases" :
      cell.classList.contains("n") ? row + " and " + column + ": cannot occur together" :
      row + " and " + column + ": " +
        (text === "0" ? "never together" : text + " case" + (text === "1" ? "" : "s"));
    cell.title = readout.textContent;
  }
  if (readout) {
    document.addEventListener("mouseover", read);
    document.addEventListener("click", read);
  }

  // While the run goes on, its report is written again and again. Whoever reads it keeps the
  // place, what is open and the map that was picked.
  var place = "fsdpfuzz " + location.pathname;
  function opened() { return document.querySelectorAll("details"); }
  function remembered() {
    try { return JSON.parse(sessionStorage.getItem(place)); } catch (error) { return null; }
  }
  function remember() {
    var state = {
      top: scrollY,
      open: Array.prototype.map.call(opened(), function (one) { return one.open; }),
      pick: (document.querySelector(".pick:checked") || {}).id
    };
    try { sessionStorage.setItem(place, JSON.stringify(state)); } catch (error) { /* forgotten */ }
  }
  var state = remembered();
  if (state) {
    sessionStorage.removeItem(place);
    opened().forEach(function (one, i) { one.open = Boolean(state.open[i]); });
    var pick = state.pick && document.getElementById(state.pick);
    if (pick) { pick.checked = true; }
    scrollTo(0, state.top);
  }
  var refresh = document.querySelector("meta[name=fsdpfuzz-refresh]");
  if (refresh) {
    setTimeout(function () { remember(); location.reload(); }, 1000 * Number(refresh.content));
  }
})();
