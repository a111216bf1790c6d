<?php
/** German (Deutsch) */

$namespaceNames = [
	NS_MEDIA            => 'Medium',
	NS_USER_TALK        => 'Benutzer_Diskussion',
	NS_PROJECT_TALK     => '$1_Diskussion', // of the wiki
	NS_FILE             => 'Datei',
];

$namespaceAliases = [
	# 'Foto' => NS_FILE,
	"Bild" => NS_FILE,
];

$magicWords = [
	'hiddencat'                 => [ '1', '__VERSTECKTE_KATEGORIE__', '__HIDDENCAT__' ],
	'lc'                        => [ '0', 'KLEIN:', 'LC:' ],
	'redirect'                  => [ '0', '#WEITERLEITUNG', '#l\'autre', '#REDIRECT' ],
	'toc'                       => [ '0', '__INHALTSVERZEICHNIS__', '__TOC__' ],
];
